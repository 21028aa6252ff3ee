//! MD5 (RFC 1321) and SHA-256 (FIPS 180-4) of files, by which published files are recognised. Neither protects anything here.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};

/// A hash function over blocks of 64 bytes.
trait Blocks {
    fn block(&mut self, block: &[u8; 64]);
    /// The last eight bytes of the last block: the message's length in bits.
    fn length(bits: u64) -> [u8; 8];
    fn digest(&self) -> Vec<u8>;
}

pub fn md5(path: &Path) -> Result<String> {
    of_file(path, Md5::new())
}

pub fn sha256(path: &Path) -> Result<String> {
    of_file(path, Sha256::new())
}

fn of_file(path: &Path, state: impl Blocks) -> Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    hash(File::open(path).with_context(cannot)?, state).with_context(cannot)
}

/// The digest in hexadecimal.
fn hash<H: Blocks>(mut input: impl Read, mut state: H) -> Result<String> {
    let (mut length, mut rest) = (0u64, Vec::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = input.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        length += read as u64;
        rest.extend_from_slice(&buffer[..read]);
        let (blocks, end) = rest.as_chunks::<64>();
        blocks.iter().for_each(|block| state.block(block));
        rest = end.to_vec();
    }
    // A bit that is set, zeros, and the length fill the last block.
    rest.push(0x80);
    while rest.len() % 64 != 56 {
        rest.push(0);
    }
    rest.extend(H::length(8 * length));
    rest.as_chunks::<64>().0.iter().for_each(|block| state.block(block));
    Ok(state.digest().iter().map(|byte| format!("{byte:02x}")).collect())
}

struct Md5 {
    state: [u32; 4],
    constants: [u32; 64],
}

impl Md5 {
    fn new() -> Md5 {
        Md5 {
            state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
            constants: std::array::from_fn(|i| (((i + 1) as f64).sin().abs() * 2f64.powi(32)) as u32),
        }
    }
}

impl Blocks for Md5 {
    fn block(&mut self, block: &[u8; 64]) {
        const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
        let words = block.as_chunks::<4>().0;
        let [mut a, mut b, mut c, mut d] = self.state;
        for i in 0..64 {
            let (mixed, word) = match i / 16 {
                0 => ((b & c) | (!b & d), i),
                1 => ((d & b) | (!d & c), 5 * i + 1),
                2 => (b ^ c ^ d, 3 * i + 5),
                _ => (c ^ (b | !d), 7 * i),
            };
            let word = u32::from_le_bytes(words[word % 16]);
            let sum = a.wrapping_add(mixed).wrapping_add(self.constants[i]).wrapping_add(word);
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(TURNS[i / 16][i % 4]));
        }
        for (state, new) in self.state.iter_mut().zip([a, b, c, d]) {
            *state = state.wrapping_add(new);
        }
    }

    fn length(bits: u64) -> [u8; 8] {
        bits.to_le_bytes()
    }

    fn digest(&self) -> Vec<u8> {
        self.state.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

struct Sha256 {
    state: [u32; 8],
    constants: [u32; 64],
}

impl Sha256 {
    /// The state begins with the first 32 bits of the fractional parts of the square roots of the first 8 primes, and the constants are those of the
    /// cube roots of the first 64.
    fn new() -> Sha256 {
        let is_prime = |n: &u128| (2..*n).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
        let primes: Vec<u128> = (2..).filter(is_prime).take(64).collect();
        // The root of n in steps of 2^-32, in whole numbers: the largest r with r^power <= n * 2^(32 * power).
        let root = |n: u128, power: u32| {
            let (mut root, target) = (0u128, n << (32 * power));
            for bit in (0..38).rev() {
                let larger = root | 1 << bit;
                if larger.pow(power) <= target {
                    root = larger;
                }
            }
            root as u32
        };
        Sha256 {
            state: std::array::from_fn(|i| root(primes[i], 2)),
            constants: std::array::from_fn(|i| root(primes[i], 3)),
        }
    }
}

impl Blocks for Sha256 {
    fn block(&mut self, block: &[u8; 64]) {
        let mut words = [0u32; 64];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*bytes);
        }
        for i in 16..64 {
            let (before, last) = (words[i - 15], words[i - 2]);
            let small0 = before.rotate_right(7) ^ before.rotate_right(18) ^ (before >> 3);
            let small1 = last.rotate_right(17) ^ last.rotate_right(19) ^ (last >> 10);
            words[i] = words[i - 16].wrapping_add(small0).wrapping_add(words[i - 7]).wrapping_add(small1);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = self.state;
        for (word, constant) in words.iter().zip(&self.constants) {
            let large1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let first =
                h.wrapping_add(large1).wrapping_add(choice).wrapping_add(*constant).wrapping_add(*word);
            let large0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let second = large0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            (h, g, f, e) = (g, f, e, d.wrapping_add(first));
            (d, c, b, a) = (c, b, a, first.wrapping_add(second));
        }
        for (state, new) in self.state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *state = state.wrapping_add(new);
        }
    }

    fn length(bits: u64) -> [u8; 8] {
        bits.to_be_bytes()
    }

    fn digest(&self) -> Vec<u8> {
        self.state.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}

/// FNV-1a with 64 bits: a short name for a long one.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 1321 and FIPS 180-4, and lengths around a block's.
    #[test]
    fn published_digests() {
        let md5 = |text: &[u8]| hash(text, Md5::new()).unwrap();
        let sha256 = |text: &[u8]| hash(text, Sha256::new()).unwrap();
        assert_eq!(md5(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(md5(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
        assert_eq!(md5(&b"1234567890".repeat(8)), "57edf4a22be3c955ac49da2e2107b67a");
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(sha256(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        let million = vec![b'a'; 1_000_000];
        assert_eq!(sha256(&million), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        assert_eq!(md5(&million), "7707d6ae4e027c70eea2a935c2296f21");
    }
}
