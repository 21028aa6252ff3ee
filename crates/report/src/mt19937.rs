//! The random numbers of numpy's global generator: MT19937 seeded as `np.random.seed(s)` does, and `choice` on top of it.

const N: usize = 624;
const M: usize = 397;

/// The Mersenne Twister with 32-bit words.
pub struct Mt19937 {
    state: [u32; N],
    next: usize,
}

impl Mt19937 {
    /// `np.random.seed(seed)`.
    pub fn new(seed: u32) -> Mt19937 {
        let mut state = [seed; N];
        for i in 1..N {
            let previous = state[i - 1];
            state[i] = 1812433253u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Mt19937 { state, next: N }
    }

    fn twist(&mut self) {
        for i in 0..N {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }

    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// One draw of `np.random.choice(count)`: the low bits of a word, again while they are too large. A choice among one draws nothing.
    pub fn choice(&mut self, count: u32) -> u32 {
        let last = count - 1;
        if last == 0 {
            return 0;
        }
        let mask = u32::MAX >> last.leading_zeros();
        loop {
            let value = self.next_u32() & mask;
            if value <= last {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // np.random.seed(0); np.random.randint(0, 2**32, 5, dtype=np.uint32)
    #[test]
    fn words_are_numpys() {
        let mut generator = Mt19937::new(0);
        let words: Vec<u32> = (0..5).map(|_| generator.next_u32()).collect();
        assert_eq!(words, [2357136044, 2546248239, 3071714933, 3626093760, 2588848963]);
    }

    // np.random.seed(0); np.random.choice(5, 20), np.random.choice(100, 10), np.random.choice(3, 10)
    #[test]
    fn choices_are_numpys() {
        let mut generator = Mt19937::new(0);
        let mut choices =
            |count, number| -> Vec<u32> { (0..number).map(|_| generator.choice(count)).collect() };
        assert_eq!(choices(5, 20), [4, 0, 3, 3, 3, 1, 3, 2, 4, 0, 0, 4, 2, 1, 0, 1, 1, 0, 1, 4]);
        assert_eq!(choices(100, 10), [80, 69, 79, 47, 64, 82, 99, 88, 49, 29]);
        assert_eq!(choices(3, 10), [2, 0, 1, 1, 1, 0, 2, 0, 2, 2]);
    }

    // np.random.seed(0); np.random.choice(1, 4); np.random.choice(5, 3)
    #[test]
    fn one_candidate_needs_no_randomness() {
        let mut generator = Mt19937::new(0);
        assert_eq!((0..4).map(|_| generator.choice(1)).sum::<u32>(), 0);
        assert_eq!([generator.choice(5), generator.choice(5), generator.choice(5)], [4, 0, 3]);
    }

    // np.random.seed(4294967295); np.random.choice(7, 2000)[-5:] crosses several twists.
    #[test]
    fn later_words_are_numpys() {
        let mut generator = Mt19937::new(u32::MAX);
        let choices: Vec<u32> = (0..2000).map(|_| generator.choice(7)).collect();
        assert_eq!(choices[1995..], [3, 6, 4, 3, 1]);
    }
}
