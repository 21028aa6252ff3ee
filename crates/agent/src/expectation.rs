//! What the world model expected of recorded steps, and where it looked.

use engine::{Device, Error, Key, Result, Stepper, Tape};

use crate::dream::softmax;
use crate::{Agent, Attention};

/// Recorded steps in a row, oldest first, as the world model reads them: the tokens of each frame and, but for the last, the action that followed.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// i32 [L, K]
    pub tokens: &'a [i32],
    /// `[L - 1]`; more are ignored.
    pub actions: &'a [usize],
}

/// What the world model expected of a frame before it saw it, token by token or all at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Of the token that came, given what came before it, one each.
    pub probabilities: Vec<f32>,
    /// The code with the highest probability, and that probability.
    pub likeliest: Vec<(i32, f32)>,
}

impl Expectation {
    /// The cross-entropy of each token in nats: 0 for one that was certain.
    pub fn surprises(&self) -> impl Iterator<Item = f32> {
        self.probabilities.iter().map(|p| -p.max(f32::MIN_POSITIVE).ln())
    }

    /// Their mean.
    pub fn surprise(&self) -> f32 {
        self.surprises().sum::<f32>() / self.probabilities.len().max(1) as f32
    }
}

impl Read<'_> {
    /// Frames of it; an error for steps that do not fit this agent.
    fn check(&self, agent: &Agent) -> Result<usize> {
        let (k, limit) = (agent.world_model.tokens, agent.config.world_model.steps);
        let steps = self.tokens.len() / k;
        let wrong = |name: &str, expected, got| Err(Error::WrongLength { name: name.into(), expected, got });
        if steps == 0 || steps > limit || !self.tokens.len().is_multiple_of(k) {
            return wrong("tokens of recorded steps", steps.clamp(1, limit) * k, self.tokens.len());
        }
        if self.actions.len() + 1 < steps {
            return wrong("actions of recorded steps", steps - 1, self.actions.len());
        }
        for (codes, op, limit) in [
            (self.tokens.to_vec(), "token", agent.config.tokenizer.vocabulary),
            (self.actions.iter().map(|a| *a as i32).collect(), "action", agent.config.actions),
        ] {
            if let Some(position) = codes.iter().position(|code| !(0..limit as i32).contains(code)) {
                return Err(Error::IndexOutOfRange { op, index: codes[position].into(), position, limit });
            }
        }
        Ok(steps)
    }

    fn actions(&self, count: usize) -> Vec<i32> {
        self.actions.iter().take(count).map(|action| *action as i32).collect()
    }

    /// What the world model expected of every frame after the first, given the steps before it. At most as many steps as it remembers.
    pub fn expectations(&self, device: &Device, agent: &Agent) -> Result<Vec<Expectation>> {
        let (steps, k, codes) =
            (self.check(agent)?, agent.world_model.tokens, agent.config.tokenizer.vocabulary);
        if steps < 2 {
            return Ok(Vec::new());
        }
        let tokens = device.buffer::<i32>("recorded tokens", [1, steps, k])?;
        let actions = device.buffer::<i32>("recorded actions", [1, steps])?;
        tokens.write(self.tokens)?;
        // Nothing is asked about what follows the last frame.
        let mut given = self.actions(steps - 1);
        given.push(0);
        actions.write(&given)?;
        let logits = Stepper::new(device, Key::new(0, 0)).infer(|tape| -> Result<Vec<f32>> {
            let (tokens, actions) = (tape.buffer(&tokens)?, tape.buffer(&actions)?);
            let output = agent.world_model.forward(tape, tokens, actions, false)?;
            tape.read(output.observations)
        })?;
        let of = |n: usize| {
            let prediction = agent.world_model.prediction_of(n / k, n % k);
            let found = softmax(&logits[prediction * codes..(prediction + 1) * codes]);
            let best = (0..codes).fold(0, |best, i| if found[i] > found[best] { i } else { best });
            (found[self.tokens[n] as usize], (best as i32, found[best]))
        };
        let frame = |t: usize| {
            let (probabilities, likeliest) = (t * k..(t + 1) * k).map(of).unzip();
            Expectation { probabilities, likeliest }
        };
        Ok((1..steps).map(frame).collect())
    }

    /// Where the world model looked while it expected the last frame. Needs at least two frames.
    pub fn attention(&self, device: &Device, agent: &Agent) -> Result<Attention> {
        let (steps, model) = (self.check(agent)?, &agent.world_model);
        let (k, width) = (model.tokens, model.config.width);
        if steps < 2 {
            let name = "tokens of recorded steps".into();
            return Err(Error::WrongLength { name, expected: 2 * k, got: self.tokens.len() });
        }
        let tokens = device.buffer::<i32>("recorded tokens", [1, steps, k])?;
        let actions = device.buffer::<i32>("recorded actions", [1, steps - 1])?;
        tokens.write(self.tokens)?;
        actions.write(&self.actions(steps - 1))?;
        let memory = model.memory(device, 1)?;
        let asking = model.watched(false);
        let queries = (0..model.config.layers)
            .map(|_| device.buffer::<f32>("queries", [1, asking, width]))
            .collect::<Result<Vec<_>>>()?;
        // The step before the last frame is looked at.
        let newest = steps - 2;
        let begin = newest * model.positions_per_step();
        let at = begin + model.positions_ahead();
        Stepper::new(device, Key::new(0, 0)).infer(|tape| -> Result<()> {
            let (tokens, actions) = (tape.buffer(&tokens)?, tape.buffer(&actions)?);
            if newest > 0 {
                let (seen, done) = (tape.slice(tokens, 1, 0, newest)?, tape.slice(actions, 1, 0, newest)?);
                model.see_steps(tape, &memory, 0, seen, done)?;
            }
            let frame = |tape: &mut Tape, t: usize| {
                let frame = tape.slice(tokens, 1, t, t + 1)?;
                tape.reshape(frame, [1, k])
            };
            let (before, after) = (frame(tape, newest)?, frame(tape, newest + 1)?);
            model.see_frame(tape, &memory, begin, before)?;
            let action = tape.slice(actions, 1, newest, newest + 1)?;
            model.watch(tape, &memory, at, action, (before, Some(after)), &queries)
        })?;
        let mut weights = Vec::new();
        for (layer, buffer) in queries.iter().enumerate() {
            weights.extend(memory.attention_weights(layer, &buffer.read::<f32>()?, at)?);
        }
        let (layers, heads) = (model.config.layers, model.config.heads);
        Ok(Attention { layers, heads, queries: asking, keys: at + asking, weights })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::tiny_agent;
    use crate::{Action, Asked, Dream};

    /// A dream of some steps: tokens, actions, and what it said about the last frame.
    fn dreamt(device: &Device, agent: &Agent, steps: usize) -> (Vec<i32>, Vec<usize>, Vec<f32>, Attention) {
        let size = agent.config.tokenizer.frame_size;
        let frame = (0..size * size * 3).map(|i| (i * 7 % 251) as u8).collect();
        let mut dream = Dream::from_frames(device, agent, &[frame], &[], 0, Key::new(3, 0)).unwrap();
        let mut tokens = dream.look(agent).unwrap()[0].tokens.clone();
        let (mut actions, mut last) = (Vec::new(), None);
        for t in 1..steps {
            let asked = Asked { logits: true, attention: true };
            let moment = dream.step(agent, Action::Given(&[t % 2]), asked).unwrap().remove(0);
            actions.push(moment.action);
            tokens.extend(&moment.next.as_ref().unwrap().tokens);
            last = Some((moment.logits.unwrap().tokens, moment.attention.unwrap()));
        }
        let (logits, attention) = last.unwrap();
        (tokens, actions, logits, attention)
    }

    #[test]
    fn a_dream_read_again_was_expected_as_it_was_dreamt() {
        let device = Device::cpu(Some(1)).unwrap();
        let agent = tiny_agent(&device).unwrap();
        let steps = agent.config.world_model.steps.min(3);
        assert!(steps > 1);
        let (tokens, actions, logits, attention) = dreamt(&device, &agent, steps);
        let read = Read { tokens: &tokens, actions: &actions };
        let expected = read.expectations(&device, &agent).unwrap();
        assert_eq!(expected.len(), steps - 1);
        let codes = agent.config.tokenizer.vocabulary;
        let last = &expected[steps - 2];
        for (i, logits) in logits.chunks_exact(codes).enumerate() {
            let dreamt = softmax(logits)[tokens[(steps - 1) * agent.world_model.tokens + i] as usize];
            assert!((last.probabilities[i] - dreamt).abs() < 1e-5, "{i}: {dreamt} {last:?}");
            assert!(last.likeliest[i].1 >= last.probabilities[i]);
        }
        assert!(last.surprise() > 0.0);
        let seen = read.attention(&device, &agent).unwrap();
        assert_eq!((seen.queries, seen.keys), (attention.queries, attention.keys));
        for (one, other) in seen.weights.iter().zip(&attention.weights) {
            assert!((one - other).abs() < 1e-5, "{one} {other}");
        }
    }

    #[test]
    fn steps_of_another_agent_are_refused() {
        let device = Device::cpu(Some(1)).unwrap();
        let agent = tiny_agent(&device).unwrap();
        let (k, codes) = (agent.world_model.tokens, agent.config.tokenizer.vocabulary as i32);
        let refused = |tokens: &[i32], actions: &[usize]| {
            let read = Read { tokens, actions };
            read.expectations(&device, &agent).is_err() && read.attention(&device, &agent).is_err()
        };
        let frames = |n: usize| vec![0; n * k];
        assert!(!refused(&frames(2), &[0]));
        assert!(refused(&[], &[]));
        assert!(refused(&frames(2), &[]));
        assert!(refused(&frames(2)[1..], &[0]));
        assert!(refused(&frames(agent.config.world_model.steps + 1), &[0; 99]));
        assert!(refused(&frames(2), &[agent.config.actions]));
        let mut wrong = frames(2);
        wrong[0] = codes;
        assert!(refused(&wrong, &[0]));
    }
}
