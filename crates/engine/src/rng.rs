//! Counter-based randomness: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
//!
//! A number is a pure function of (seed, stream, step, site, index), so a run continues after a restart exactly where it was,
//! a backward pass recomputes a dropout mask instead of storing it, and any device produces the same numbers.

use crate::cpu::multiversion;

/// What a step's random numbers are keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The user's seed.
    pub seed: u64,
    /// Separates users of one seed from each other: networks, collection, evaluation.
    pub stream: u32,
    /// Counts the steps of one stream.
    pub step: u64,
}

impl Key {
    /// The first step of a stream.
    pub fn new(seed: u64, stream: u32) -> Key {
        Key { seed, stream, step: 0 }
    }

    /// Everything that the numbers of a step depend on: the generator's key, then the step.
    pub(crate) fn words(self) -> [u32; 4] {
        let mixed = split_mix(self.seed.wrapping_add(split_mix(u64::from(self.stream))));
        [mixed as u32, (mixed >> 32) as u32, self.step as u32, (self.step >> 32) as u32]
    }

    /// The numbers of draw number `site` within the step.
    pub(crate) fn site(self, site: u32) -> Site {
        let [key0, key1, step0, step1] = self.words();
        Site { key: [key0, key1], counter: [site, step0, step1] }
    }
}

/// One draw: an endless sequence of numbers that can be read at any index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    key: [u32; 2],
    counter: [u32; 3],
}

impl Site {
    /// The number of the draw within its step.
    pub fn number(self) -> u32 {
        self.counter[0]
    }

    /// Writes numbers `start..start + out.len()` of the sequence; `start` must be a multiple of 4.
    pub fn fill(self, start: usize, out: &mut [u32]) {
        debug_assert_eq!(start % 4, 0);
        philox_fill(self.key, self.counter, (start / 4) as u32, out);
    }

    /// Calls `f(position in the range, number)` for numbers `start..start + len`, any `start`.
    pub fn for_range(self, start: usize, len: usize, mut f: impl FnMut(usize, u32)) {
        let mut buffer = [0u32; BATCH];
        let mut at = start / 4 * 4;
        let end = start + len;
        while at < end {
            self.fill(at, &mut buffer);
            let from = start.max(at);
            for index in from..end.min(at + BATCH) {
                f(index - start, buffer[index - at]);
            }
            at += BATCH;
        }
    }
}

/// Numbers made at a time: enough to fill vector registers.
pub(crate) const BATCH: usize = 64;

/// A uniform number in [0, 1) with 24 bits.
#[inline(always)]
pub(crate) fn unit(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// A uniform number in (0, 1): never zero, for logarithms.
#[inline(always)]
pub(crate) fn open_unit(bits: u32) -> f32 {
    ((bits >> 9) as f32 + 0.5) * (1.0 / (1u32 << 23) as f32)
}

/// A sequential reader of the same sequences, for decisions made on the host (which episode, how many no-ops).
#[derive(Clone, Debug)]
pub struct Rng {
    site: Site,
    next: usize,
    /// The numbers from the last multiple of `BATCH` on.
    batch: [u32; BATCH],
}

impl Rng {
    /// The sequence of a key, from its beginning.
    pub fn new(key: Key) -> Rng {
        Rng { site: key.site(u32::MAX), next: 0, batch: [0; BATCH] }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        let at = self.next % BATCH;
        if at == 0 {
            self.site.fill(self.next, &mut self.batch);
        }
        self.next += 1;
        self.batch[at]
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        unit(self.next_u32())
    }

    /// Uniform in `0..n` (Lemire's multiply-and-reject: exactly uniform); 0 when `n` is 0.
    pub fn below(&mut self, n: u32) -> u32 {
        let rejected_under = if n == 0 { 0 } else { n.wrapping_neg() % n };
        loop {
            let product = u64::from(self.next_u32()) * u64::from(n);
            if product as u32 >= rejected_under {
                return (product >> 32) as u32;
            }
        }
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * f64::from(open_unit(self.next_u32())).ln()).sqrt();
        let angle = std::f64::consts::TAU * f64::from(self.uniform());
        (radius * angle.cos()) as f32
    }
}

fn split_mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

multiversion! {
    fn philox_fill(key: [u32; 2], counter: [u32; 3], first: u32, out: &mut [u32]) {
        // Sixteen counters side by side, so that the rounds vectorise.
        const LANES: usize = BATCH / 4;
        let mut base = first;
        for chunk in out.chunks_mut(BATCH) {
            let mut x0 = [0u32; LANES];
            for (lane, x) in x0.iter_mut().enumerate() {
                *x = base.wrapping_add(lane as u32);
            }
            let (mut x1, mut x2, mut x3) = ([counter[0]; LANES], [counter[1]; LANES], [counter[2]; LANES]);
            let [mut k0, mut k1] = key;
            for _ in 0..10 {
                for lane in 0..LANES {
                    let a = u64::from(x0[lane]) * 0xD251_1F53;
                    let b = u64::from(x2[lane]) * 0xCD9E_8D57;
                    let (y1, y3) = (x1[lane], x3[lane]);
                    x0[lane] = (b >> 32) as u32 ^ y1 ^ k0;
                    x1[lane] = b as u32;
                    x2[lane] = (a >> 32) as u32 ^ y3 ^ k1;
                    x3[lane] = a as u32;
                }
                k0 = k0.wrapping_add(0x9E37_79B9);
                k1 = k1.wrapping_add(0xBB67_AE85);
            }
            for (lane, quad) in chunk.chunks_mut(4).enumerate() {
                let words = [x0[lane], x1[lane], x2[lane], x3[lane]];
                quad.copy_from_slice(&words[..quad.len()]);
            }
            base = base.wrapping_add(LANES as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors of the authors' Random123 distribution.
    #[test]
    fn philox_matches_the_published_vectors() {
        let run = |counter: [u32; 4], key: [u32; 2]| {
            let mut out = [0; 4];
            philox_fill(key, [counter[1], counter[2], counter[3]], counter[0], &mut out);
            out
        };
        assert_eq!(run([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(run([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            run([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn any_range_reads_the_same_sequence() {
        let site = Key { seed: 7, stream: 3, step: 1 << 40 }.site(5);
        let mut whole = vec![0; 300];
        site.fill(0, &mut whole);
        for (start, len) in [(0, 300), (1, 7), (63, 130), (200, 100), (5, 0)] {
            let mut got = vec![0; len];
            site.for_range(start, len, |i, bits| got[i] = bits);
            assert_eq!(got, whole[start..start + len]);
        }
    }

    #[test]
    fn seeds_streams_steps_and_sites_differ() {
        let base = Key { seed: 1, stream: 2, step: 3 };
        let first = |key: Key, site| {
            let mut out = [0; 4];
            key.site(site).fill(0, &mut out);
            out
        };
        let reference = first(base, 0);
        assert_ne!(reference, first(Key { seed: 2, ..base }, 0));
        assert_ne!(reference, first(Key { stream: 3, ..base }, 0));
        assert_ne!(reference, first(Key { step: 4, ..base }, 0));
        assert_ne!(reference, first(base, 1));
        assert_eq!(reference, first(base, 0));
    }

    #[test]
    fn host_draws_have_the_right_moments() {
        let mut rng = Rng::new(Key::new(11, 0));
        let n = 20_000;
        let normals: Vec<f64> = (0..n).map(|_| f64::from(rng.normal())).collect();
        let mean = normals.iter().sum::<f64>() / f64::from(n);
        let variance = normals.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "mean {mean}, variance {variance}");
        let mut counts = [0; 5];
        for _ in 0..n {
            counts[rng.below(5) as usize] += 1;
        }
        assert!(counts.iter().all(|&c| (3_800..4_200).contains(&c)), "{counts:?}");
    }
}
