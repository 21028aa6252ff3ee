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

/// Expectations of the tokens of frames, given the frames before them, the given ones at least; and, where tokens are not drawn at once, the tokens before
/// each in its own frame.
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

/// Counts at one step of the dreams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreseen {
    /// Dreams that had not ended before, of episodes that had not.
    pub dreams: usize,
    /// Rewards, of either sign; `both` if it is the same.
    pub rewards: Hits,
    pub ends: Hits,
    /// Frames that follow, and sums over them of the mean absolute error for pixels from 0 to 1: as dreamt, as if nothing had moved since the last given
    /// frame, and as the tokenizer keeps them.
    pub frames: usize,
    pub error: f64,
    pub still: f64,
    pub kept: f64,
}

/// How often something came in the game, how often in the dream, and how often in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    pub came: usize,
    pub dreamt: usize,
    pub both: usize,
}

impl Hits {
    fn new(came: bool, dreamt: bool, same: bool) -> Hits {
        let both = usize::from(came && dreamt && same);
        Hits { came: usize::from(came), dreamt: usize::from(dreamt), both }
    }

    fn add(&mut self, other: Hits) {
        self.came += other.came;
        self.dreamt += other.dreamt;
        self.both += other.both;
    }

    /// How much of what came was dreamt, from 0 to 1.
    pub fn recall(&self) -> Option<f64> {
        (self.came > 0).then(|| self.both as f64 / self.came as f64)
    }

    /// How much of what was dreamt came.
    pub fn precision(&self) -> Option<f64> {
        (self.dreamt > 0).then(|| self.both as f64 / self.dreamt as f64)
    }
}

impl Foreseen {
    fn add(&mut self, other: &Foreseen) {
        self.dreams += other.dreams;
        self.rewards.add(other.rewards);
        self.ends.add(other.ends);
        self.frames += other.frames;
        self.error += other.error;
        self.still += other.still;
        self.kept += other.kept;
    }
}

impl Foresight {
    /// Frames that a dream is given in training.
    pub fn usual_context(agent: &Agent) -> usize {
        agent.config.world_model.context + 1
    }

    /// Steps of a dream after `context` given frames before the world model forgets any of them.
    pub fn most_steps(agent: &Agent, context: usize) -> usize {
        let config = &agent.config.world_model;
        let ahead = usize::from(agent.world_model.positions_ahead() > 0);
        config.steps.saturating_sub(config.context.max(context.saturating_sub(1)) + ahead)
    }

    /// Dreams once from each stretch, of which the first `context` frames are given, and follows the actions that were taken in it for `steps` steps or to its end.
    pub fn measure(
        device: &Device,
        agent: &Agent,
        stretches: &[Stretch],
        (context, steps): (usize, usize),
        key: Key,
    ) -> Result<Foresight> {
        let shortest = stretches.iter().map(|stretch| stretch.cells.len()).min().unwrap_or(0);
        if context == 0 || shortest < context {
            let name = "steps of a stretch that is foreseen".into();
            return Err(Error::WrongLength { name, expected: context.max(1), got: shortest });
        }
        let mut eye = Eye::new(device, agent)?;
        let mut foresight = Foresight { steps: vec![Foreseen::default(); steps], ..Foresight::default() };
        // What the tokenizer keeps of each frame of each stretch.
        let mut kept: Vec<Vec<Vec<u8>>> = Vec::with_capacity(stretches.len());
        for Stretch { cells, actions, .. } in stretches {
            let mut tokens = Vec::new();
            let mut seen = Vec::with_capacity(cells.len());
            for cell in cells {
                let (pixels, codes) = eye.look(agent, &cell.frame)?;
                tokens.extend(codes);
                seen.push(pixels);
            }
            kept.push(seen);
            foresight.next.add(device, agent, &tokens, actions, context)?;
        }

        // Those that the world model sees at once, and the rest.
        let at_once = context.min(Foresight::usual_context(agent));
        let first = |s: &Stretch| s.cells[..at_once].iter().flat_map(|cell| cell.frame.clone()).collect();
        let frames: Vec<Vec<u8>> = stretches.iter().map(first).collect();
        let before: Vec<Vec<usize>> = stretches.iter().map(|s| s.actions[..at_once - 1].to_vec()).collect();
        let mut dream = Dream::from_frames(device, agent, &frames, &before, 0, key)?;
        let taken = |t: usize| -> Vec<usize> {
            stretches.iter().map(|s| s.actions.get(t).copied().unwrap_or_default()).collect()
        };
        for t in at_once - 1..context - 1 {
            let next: Vec<Vec<u8>> = stretches.iter().map(|s| s.cells[t + 1].frame.clone()).collect();
            dream.condition(agent, &taken(t), &next)?;
        }
        let mut over = vec![false; stretches.len()];
        for (step, t) in foresight.steps.iter_mut().zip(context - 1..) {
            let moments = dream.step(agent, Action::Given(&taken(t)), Asked::default())?;
            for (i, (Stretch { cells, .. }, moment)) in stretches.iter().zip(moments).enumerate() {
                let Some(cell) = cells.get(t).filter(|_| !over[i]) else { continue };
                let came = sign(cell.reward);
                let dreamt = sign(agent.config.world_model.reward.shown(moment.reward));
                let mut seen = Foreseen {
                    dreams: 1,
                    rewards: Hits::new(came != 0, dreamt != 0, came == dreamt),
                    ends: Hits::new(cell.end, moment.end, true),
                    ..Foreseen::default()
                };
                over[i] = cell.end || moment.end;
                if let (Some(next), Some(real)) = (moment.next, cells.get(t + 1))
                    && !over[i]
                {
                    seen.frames = 1;
                    seen.error = apart(&next.pixels, &real.frame);
                    seen.still = apart(&cells[context - 1].frame, &real.frame);
                    seen.kept = apart(&kept[i][t + 1], &real.frame);
                }
                step.add(&seen);
            }
        }
        Ok(foresight)
    }

    /// Adds what was measured of other stretches.
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
    /// The frames after the first `context`, as far as the world model looks at all that is before them.
    fn add(
        &mut self,
        device: &Device,
        agent: &Agent,
        tokens: &[i32],
        actions: &[usize],
        context: usize,
    ) -> Result<()> {
        let k = agent.world_model.tokens;
        let frames = (tokens.len() / k).min(agent.config.world_model.steps);
        let expected = Read { tokens: &tokens[..frames * k], actions }.expectations(device, agent)?;
        for (expectation, pair) in expected.iter().zip(tokens.windows(2 * k).step_by(k)).skip(context - 1) {
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
    use crate::{Acting, AgentConfig, Rollout, WorldModelKind};

    /// Of both kinds, with a memory of four steps; the second is always shown a step before those it dreams from.
    fn agents(device: &Device) -> Result<[Agent; 2]> {
        let mut config = AgentConfig { actions: 2, ..tiny_agent(device)?.config };
        config.world_model.steps = 4;
        let token = Agent::new(device, &config, 0)?;
        let w = &mut config.world_model;
        (w.kind, w.patch, w.context, w.width) = (WorldModelKind::Frame, 2, 1, 8);
        Ok([token, Agent::new(device, &config, 0)?])
    }

    /// Steps of a game that gets brighter by ten of 255 in each, from the step with this number on; every third is rewarded, and the tenth is the last.
    fn stretch(agent: &Agent, steps: std::ops::Range<usize>) -> Stretch {
        let bytes = agent.config.tokenizer.frame_size.pow(2) * 3;
        let cell = |t: usize| Cell {
            frame: vec![10 * t as u8; bytes],
            reward: if t.is_multiple_of(3) { 1.0 } else { 0.0 },
            end: t == 9,
            given: false,
        };
        Stretch {
            cells: steps.clone().map(cell).collect(),
            actions: steps.map(|t| t % 2).collect(),
            ..Stretch::default()
        }
    }

    #[test]
    fn every_step_of_every_dream_is_counted() -> Result<()> {
        const CONTEXT: usize = 2;
        let device = Device::under_test(1)?;
        for agent in agents(&device)? {
            let stretches: Vec<Stretch> =
                [0..4, 2..6, 3..7, 4..8, 6..10, 8..10].map(|steps| stretch(&agent, steps)).into();
            let found = Foresight::measure(&device, &agent, &stretches, (CONTEXT, 2), Key::new(0, 0))?;
            assert_eq!(found.steps.len(), 2);
            let first = found.steps[0];
            // The steps numbered 1, 3, 4, 5, 7 and 9, and the last is the end of its episode.
            assert_eq!((first.dreams, first.rewards.came, first.ends.came), (6, 2, 1));
            let over = first.ends.came + first.ends.dreamt - first.ends.both;
            assert_eq!(found.steps[1].dreams, 6 - over);
            let mut eye = Eye::new(&device, &agent)?;
            for (i, step) in found.steps.iter().enumerate() {
                let frames = step.frames as f64;
                assert!((step.still - frames * 10.0 * (i + 1) as f64 / 255.0).abs() < 1e-9, "{}", step.still);
                assert_eq!(step.frames == 0, step.error == 0.0);
                // What is kept of the frame that follows, of each dream that may have come so far.
                let mut kept = Vec::new();
                for Stretch { cells, .. } in stretches.iter().filter(|s| s.cells.len() > CONTEXT + i) {
                    let real = &cells[CONTEXT + i].frame;
                    kept.push(apart(&eye.look(&agent, real)?.0, real));
                }
                kept.sort_by(f64::total_cmp);
                let (low, high): (f64, f64) =
                    (kept[..step.frames].iter().sum(), kept[kept.len() - step.frames..].iter().sum());
                assert!((low - 1e-9..=high + 1e-9).contains(&step.kept), "{low} {} {high}", step.kept);
            }
            // Of the frames after the given ones.
            let (mut tokens, mut changed) = (0, 0);
            for Stretch { cells, .. } in &stretches {
                let mut of = |t: usize| eye.look(&agent, &cells[t].frame).map(|(_, tokens)| tokens);
                for t in CONTEXT..cells.len() {
                    let (old, new) = (of(t - 1)?, of(t)?);
                    tokens += new.len();
                    changed += old.iter().zip(&new).filter(|(old, new)| old != new).count();
                }
            }
            let next = found.next;
            assert_eq!((next.tokens, next.changed), (tokens, changed));
            assert!(next.changed_right <= next.right.min(changed) && next.right <= tokens && next.nats > 0.0);

            let mut twice = found.clone();
            twice.add(&found);
            let (one, two) = (found.total(), twice.total());
            assert_eq!((two.dreams, two.rewards.came), (2 * one.dreams, 2 * one.rewards.came));
            assert_eq!(two.rewards.recall(), one.rewards.recall());
        }
        Ok(())
    }

    /// Dreams are those that pictures show: the same frames are given, and the same actions taken.
    #[test]
    fn dreams_are_those_of_rollouts() -> Result<()> {
        let device = Device::under_test(1)?;
        let mut compared = 0;
        for agent in agents(&device)? {
            let before = Foresight::usual_context(&agent) - 1;
            for number in 0..20 {
                let key = Key::new(number, 0);
                let mut played = stretch(&agent, 0..5);
                let taken = |t: usize| (number as usize >> t) % 2;
                played.actions = (0..5).map(taken).collect();
                let found = Foresight::measure(&device, &agent, std::slice::from_ref(&played), (2, 3), key)?;
                // What the world model sees at once comes before the start.
                let start = Stretch { before, ..played.clone() };
                let rollout =
                    Rollout { device: &device, agent: &agent, burn_in: 0, context: Some(2 - before) };
                let acting = Acting::Given(&played.actions[1..4]);
                let dreamt = rollout.dreams(&[start], 5 - before, acting, key, |_| {})?.remove(0);
                for (i, step) in found.steps.iter().enumerate().filter(|(_, step)| step.dreams == 1) {
                    let cell = &dreamt.cells[1 - before + i];
                    assert_eq!(step.rewards.dreamt == 1, cell.reward != 0.0, "{number} {i}");
                    assert_eq!(step.ends.dreamt == 1, cell.end, "{number} {i}");
                    if step.frames == 1 {
                        let next = &dreamt.cells[2 - before + i].frame;
                        assert_eq!(step.error, apart(next, &played.cells[2 + i].frame), "{number} {i}");
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 20, "{compared}");
        Ok(())
    }

    #[test]
    fn what_fits_is_what_training_dreams_of() -> Result<()> {
        let device = Device::under_test(1)?;
        let most = |agent: &Agent| [1, 2, 3, 9].map(|context| Foresight::most_steps(agent, context));
        let [token, frame] = agents(&device)?;
        assert_eq!((Foresight::usual_context(&token), most(&token)), (1, [3, 2, 1, 0]));
        assert_eq!((Foresight::usual_context(&frame), most(&frame)), (2, [3, 3, 2, 0]));
        Ok(())
    }

    #[test]
    fn hits_are_shares() {
        let hits = Hits { came: 4, dreamt: 3, both: 1 };
        assert_eq!((hits.recall(), hits.precision()), (Some(0.25), Some(1.0 / 3.0)));
        assert_eq!((Hits::default().recall(), Hits::default().precision()), (None, None));
        assert_eq!(Hits::new(true, true, false), Hits { came: 1, dreamt: 1, both: 0 });
    }

    #[test]
    fn there_must_be_something_to_foresee() -> Result<()> {
        let device = Device::under_test(1)?;
        let agent = tiny_agent(&device)?;
        for (stretches, context) in
            [(vec![stretch(&agent, 0..2)], 3), (vec![stretch(&agent, 0..2)], 0), (vec![], 1)]
        {
            let refused = Foresight::measure(&device, &agent, &stretches, (context, 1), Key::new(0, 0));
            assert!(refused.unwrap_err().to_string().contains("steps of a stretch that is foreseen"));
        }
        Ok(())
    }
}
