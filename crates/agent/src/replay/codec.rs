//! Frames in few bytes: what differs from a key frame nearby, compressed with LZ4. Of a game little moves within a second, so most of it is zeros.

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFrame;

/// At most as many bytes as the frame has: as many are what differs as it is.
pub(crate) fn pack(frame: &[u8], key: Option<&[u8]>) -> Vec<u8> {
    let mut difference = frame.to_vec();
    if let Some(key) = key {
        difference.iter_mut().zip(key).for_each(|(byte, key)| *byte = byte.wrapping_sub(*key));
    }
    let packed = lz4_flex::block::compress(&difference);
    if packed.len() < frame.len() { packed } else { difference }
}

/// Fills `frame` with what [`pack`] packed. Whatever the bytes are, nothing beyond the frame is written or allocated.
pub(crate) fn unpack(packed: &[u8], key: Option<&[u8]>, frame: &mut [u8]) -> Result<(), NoFrame> {
    if packed.len() == frame.len() {
        frame.copy_from_slice(packed);
    } else if lz4_flex::block::decompress_into(packed, frame).ok() != Some(frame.len()) {
        return Err(NoFrame);
    }
    if let Some(key) = key {
        frame.iter_mut().zip(key).for_each(|(byte, key)| *byte = byte.wrapping_add(*key));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Key, Rng};

    #[test]
    fn frames_come_back() {
        let mut rng = Rng::new(Key::new(0, 0));
        let noise: Vec<u8> = (0..3072).map(|_| rng.below(256) as u8).collect();
        let mut moved = noise.clone();
        moved[700..720].fill(9);
        for (frame, key, most) in [
            (&noise, None, 3072),
            (&noise, Some(&noise), 40),
            (&moved, Some(&noise), 80),
            (&vec![3; 3072], None, 40),
            (&vec![3; 3072], Some(&noise), 3072),
        ] {
            let key = key.map(Vec::as_slice);
            let packed = pack(frame, key);
            assert!(packed.len() <= most, "{}", packed.len());
            let mut out = vec![1; 3072];
            unpack(&packed, key, &mut out).unwrap();
            assert_eq!(&out, frame);
            // Of bytes that are too few or too many none is a frame.
            for wrong in [&packed[..packed.len() - 1], &[], &[&packed[..], &[0]].concat()] {
                assert_eq!(unpack(wrong, key, &mut out), Err(NoFrame), "{} bytes", wrong.len());
            }
            assert!(unpack(&packed, key, &mut vec![0; 3071]).is_err());
        }
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let mut rng = Rng::new(Key::new(1, 0));
        let mut out = vec![0; 192];
        let good = pack(&[5; 192], None);
        for _ in 0..200_000 {
            let mut bytes: Vec<u8> = match rng.below(2) {
                0 => (0..rng.below(40)).map(|_| rng.below(256) as u8).collect(),
                _ => good.clone(),
            };
            if !bytes.is_empty() {
                let at = rng.below(bytes.len() as u32) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            let _ = unpack(&bytes, None, &mut out);
        }
    }
}
