//! How well a world model foresees a game: what it expects of the next frame, and dreams beside what really followed the same actions.

use engine::{Device, Error, Key, Result};

use crate::{Action, Agent, Asked, Dream, Eye, Read, Stretch};

/// What was measured over stretches of the game.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foresight {
    pub next: NextFrame,
    /// The first is of the step that begins in the last given frame.
    pub steps: Vec<Foreseen>,
}

/// Expectations of the tokens of frames, given what really came before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NextFrame {
    pub tokens: usize,
    /// Sum of the cross-entropies, in nats.
    pub nats: f64,
    /// Tokens that were the likeliest.
    pub right: usize,
    /// Tokens that differ from those in their place in the frame before.
    pub changed: usize,
    /// Those that were the likeliest.
    pub changed_right: usize,
}

/// Dreams after so many steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreseen {
    /// Dreams that had not ended before.
    pub dreams: usize,
    /// Those that say the end here.
    pub ended: usize,
    /// Rewards of the game, of either sign.
    pub rewards: usize,
    /// Rewards of the dreams.
    pub dreamt: usize,
    /// Rewards of both, of the same sign.
    pub both: usize,
    /// Sums over dreams of the mean absolute error of the frame that follows, for pixels from 0 to 1: as it was dreamt, if nothing had moved since the last
    /// given frame, and as the tokenizer keeps it.
    pub error: f64,
    pub still: f64,
    pub kept: f64,
}

impl Foreseen {
    fn add(&mut self, other: &Foreseen) {
        for (to, from) in [
            (&mut self.dreams, other.dreams),
            (&mut self.ended, other.ended),
            (&mut self.rewards, other.rewards),
            (&mut self.dreamt, other.dreamt),
            (&mut self.both, other.both),
        ] {
            *to += from;
        }
        self.error += other.error;
        self.still += other.still;
        self.kept += other.kept;
    }

    /// How many of the game's rewards were dreamt, from 0 to 1.
    pub fn recall(&self) -> Option<f64> {
        (self.rewards > 0).then(|| self.both as f64 / self.rewards as f64)
    }

    /// How many of the dreamt rewards came.
    pub fn precision(&self) -> Option<f64> {
        (self.dreamt > 0).then(|| self.both as f64 / self.dreamt as f64)
    }
}

impl Foresight {
    /// Dreams once from each stretch, of which `context` frames are given beside those before it, and follows the actions that were taken in it to the end
    /// of the shortest.
    pub fn measure(
        device: &Device,
        agent: &Agent,
        stretches: &[Stretch],
        context: usize,
        key: Key,
    ) -> Result<Foresight> {
        let shortest = stretches.iter().map(|stretch| stretch.followed().0.len()).min().unwrap_or(0);
        if context == 0 || shortest <= context {
            let name = "steps of a stretch that is foreseen".into();
            return Err(Error::WrongLength { name, expected: context.max(1) + 1, got: shortest });
        }
        let mut eye = Eye::new(device, agent)?;
        let mut foresight =
            Foresight { steps: vec![Foreseen::default(); shortest - context], ..Foresight::default() };
        // What the tokenizer keeps of each frame of each stretch.
        let mut kept: Vec<Vec<Vec<u8>>> = Vec::with_capacity(stretches.len());
        for stretch in stretches {
            let (cells, actions) = stretch.followed();
            let mut tokens = Vec::new();
            let mut seen = Vec::with_capacity(shortest);
            for cell in &cells[..shortest] {
                let (pixels, codes) = eye.look(agent, &cell.frame)?;
                tokens.extend(codes);
                seen.push(pixels);
            }
            kept.push(seen);
            foresight.next.add(device, agent, &tokens, actions)?;
        }

        let first = |stretch: &Stretch| {
            stretch.cells.iter().take(stretch.before + 1).flat_map(|cell| cell.frame.clone()).collect()
        };
        let frames: Vec<Vec<u8>> = stretches.iter().map(first).collect();
        let before: Vec<Vec<usize>> = stretches.iter().map(Stretch::actions_before).collect();
        let mut dream = Dream::from_frames(device, agent, &frames, &before, 0, key)?;
        let taken = |t: usize| stretches.iter().map(|s| s.followed().1[t]).collect::<Vec<usize>>();
        for t in 0..context - 1 {
            let next: Vec<Vec<u8>> = stretches.iter().map(|s| s.followed().0[t + 1].frame.clone()).collect();
            dream.condition(agent, &taken(t), &next)?;
        }
        let mut over = vec![false; stretches.len()];
        for (step, t) in foresight.steps.iter_mut().zip(context - 1..) {
            let moments = dream.step(agent, Action::Given(&taken(t)), Asked::default())?;
            for (i, (stretch, moment)) in stretches.iter().zip(moments).enumerate() {
                let Some(next) = moment.next.filter(|_| !over[i]) else { continue };
                let cells = stretch.followed().0;
                let (came, dreamt) =
                    (sign(cells[t].reward), sign(agent.config.world_model.reward.shown(moment.reward)));
                let real = &cells[t + 1].frame;
                step.add(&Foreseen {
                    dreams: 1,
                    ended: usize::from(moment.end),
                    rewards: usize::from(came != 0),
                    dreamt: usize::from(dreamt != 0),
                    both: usize::from(came != 0 && came == dreamt),
                    error: apart(&next.pixels, real),
                    still: apart(&cells[context - 1].frame, real),
                    kept: apart(&kept[i][t + 1], real),
                });
                over[i] = moment.end;
            }
        }
        Ok(foresight)
    }

    /// Adds what was measured of other stretches, with as many steps.
    pub fn add(&mut self, other: &Foresight) {
        let (next, more) = (&mut self.next, &other.next);
        next.tokens += more.tokens;
        next.nats += more.nats;
        next.right += more.right;
        next.changed += more.changed;
        next.changed_right += more.changed_right;
        self.steps.resize(self.steps.len().max(other.steps.len()), Foreseen::default());
        self.steps.iter_mut().zip(&other.steps).for_each(|(to, from)| to.add(from));
    }

    /// Over all steps.
    pub fn total(&self) -> Foreseen {
        let mut total = Foreseen::default();
        self.steps.iter().for_each(|step| total.add(step));
        total
    }
}

impl NextFrame {
    /// The newest of these tokens, as many as the world model looks at.
    fn add(&mut self, device: &Device, agent: &Agent, tokens: &[i32], actions: &[usize]) -> Result<()> {
        let k = agent.world_model.tokens;
        let frames = tokens.len() / k;
        let skipped = frames.saturating_sub(agent.config.world_model.steps);
        let (tokens, actions) = (&tokens[skipped * k..], &actions[skipped..]);
        let expected = Read { tokens, actions }.expectations(device, agent)?;
        for (expectation, pair) in expected.iter().zip(tokens.windows(2 * k).step_by(k)) {
            let (old, new) = pair.split_at(k);
            self.nats += expectation.surprises().map(f64::from).sum::<f64>();
            for ((old, new), (likeliest, _)) in old.iter().zip(new).zip(&expectation.likeliest) {
                let (right, changed) = (likeliest == new, old != new);
                self.tokens += 1;
                self.right += usize::from(right);
                self.changed += usize::from(changed);
                self.changed_right += usize::from(right && changed);
            }
        }
        Ok(())
    }
}

fn sign(reward: f32) -> i32 {
    i32::from(reward > 0.0) - i32::from(reward < 0.0)
}

/// Mean absolute difference of two frames, for pixels from 0 to 1.
fn apart(a: &[u8], b: &[u8]) -> f64 {
    let sum: u64 = a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    sum as f64 / 255.0 / a.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::tiny_agent;
    use crate::picture::Cell;

    /// Steps of a game whose frames have a bright column that moves on; every third step is rewarded.
    fn stretch(agent: &Agent, steps: usize, first: usize) -> Stretch {
        let size = agent.config.tokenizer.frame_size;
        let mut stretch = Stretch::default();
        for t in first..first + steps {
            let bright = |i: usize| if i / 3 % size == t % size { 255 } else { 0 };
            let frame = (0..size * size * 3).map(bright).collect();
            let reward = if t % 3 == 0 { 1.0 } else { 0.0 };
            stretch.cells.push(Cell { frame, reward, ..Cell::default() });
            stretch.actions.push(t % agent.config.actions);
        }
        stretch
    }

    #[test]
    fn every_step_of_every_dream_is_counted() -> Result<()> {
        let device = Device::under_test(1)?;
        let agent = tiny_agent(&device)?;
        let stretches: Vec<Stretch> = (0..3).map(|i| stretch(&agent, 4, i)).collect();
        let found = Foresight::measure(&device, &agent, &stretches, 2, Key::new(0, 0))?;
        assert_eq!(found.steps.len(), 2);
        let mut left = stretches.len();
        for (t, step) in (1..).zip(&found.steps) {
            assert_eq!(step.dreams, left, "dreams that ended are not counted any more");
            left -= step.ended;
            let came = |s: &&Stretch| s.cells[t].reward > 0.0;
            // Of dreams that go on nobody knows which, but all began.
            if t == 1 {
                assert_eq!(step.rewards, stretches.iter().filter(came).count());
            }
            assert!(step.both <= step.rewards.min(step.dreamt));
            let size = agent.config.tokenizer.frame_size as f64;
            assert!((step.still - step.dreams as f64 * 2.0 / size).abs() < 1e-9, "{}", step.still);
            assert!(step.error > 0.0 && step.kept > 0.0);
        }
        let next = found.next;
        let looked_at = agent.config.world_model.steps.min(4);
        assert_eq!(next.tokens, 3 * (looked_at - 1) * agent.world_model.tokens);
        assert!(next.changed_right <= next.right.min(next.changed) && next.nats > 0.0, "{next:?}");

        let mut twice = found.clone();
        twice.add(&found);
        let (one, two) = (found.total(), twice.total());
        assert_eq!((two.dreams, two.rewards), (2 * one.dreams, 2 * one.rewards));
        assert_eq!(two.recall(), one.recall());
        assert_eq!(Foreseen::default().precision(), None);
        Ok(())
    }

    #[test]
    fn there_must_be_something_to_foresee() -> Result<()> {
        let device = Device::under_test(1)?;
        let agent = tiny_agent(&device)?;
        for (stretches, context) in
            [(vec![stretch(&agent, 2, 0)], 2), (vec![stretch(&agent, 2, 0)], 0), (vec![], 1)]
        {
            let refused = Foresight::measure(&device, &agent, &stretches, context, Key::new(0, 0));
            assert!(refused.unwrap_err().to_string().contains("steps of a stretch that is foreseen"));
        }
        Ok(())
    }
}
