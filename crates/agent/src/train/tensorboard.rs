//! Metrics as a TensorBoard event file: TFRecords of `Event` messages, written by hand because four fields are all we need.
//!
//! Wall times are the only thing in a run's folder that the clock decides. A resumed run, which writes the file anew, keeps those of its earlier epochs.

use std::collections::BTreeMap;

/// A record: length, its checksum, the bytes, their checksum.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc32c(&length).to_le_bytes(), data, &masked_crc32c(data).to_le_bytes()].concat()
}

/// What an event file starts with; `time` is in seconds since 1970.
pub(super) fn header(time: f64) -> Vec<u8> {
    // Event { wall_time (1), file_version (3) }
    let mut event = key(1, FIXED64);
    event.extend(time.to_le_bytes());
    event.extend(bytes_field(3, b"brain.Event:2"));
    record(&event)
}

/// The metrics of an epoch that was over at `time`.
pub(super) fn scalars(epoch: usize, time: f64, metrics: &[(String, f64)]) -> Vec<u8> {
    // Summary { value (1): Value { tag (1), simple_value (2) } }
    let mut summary = Vec::new();
    for (name, value) in metrics {
        let mut scalar = bytes_field(1, name.as_bytes());
        scalar.extend(key(2, FIXED32));
        scalar.extend((*value as f32).to_le_bytes());
        summary.extend(bytes_field(1, &scalar));
    }
    // Event { wall_time (1), step (2), summary (5) }
    let mut event = key(1, FIXED64);
    event.extend(time.to_le_bytes());
    event.extend(key(2, VARINT));
    event.extend(varint(epoch as u64));
    event.extend(bytes_field(5, &summary));
    record(&event)
}

/// Wall times of the epochs in an event file, as far as it can be read. Older programs wrote the epoch instead: no times of this century.
pub(super) fn times(file: &[u8]) -> BTreeMap<usize, f64> {
    let mut times = BTreeMap::new();
    let mut rest = file;
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let Some(event) = usize::try_from(u64::from_le_bytes(*length))
            .ok()
            .and_then(|length| after.get(4..length.checked_add(4)?))
        else {
            break;
        };
        rest = after.get(event.len() + 8..).unwrap_or_default();
        // wall_time (1), step (2): those of the header have no step.
        if let [9, a, b, c, d, e, f, g, h, 16, step @ ..] = event {
            let time = f64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            if time >= THIS_CENTURY && time.is_finite() {
                times.insert(read_varint(step), time);
            }
        }
    }
    times
}

const THIS_CENTURY: f64 = 978_307_200.0;

/// The number that [`varint`] wrote; at most 63 bits.
fn read_varint(bytes: &[u8]) -> usize {
    let length = bytes.iter().take(9).take_while(|byte| **byte >= 0x80).count() + 1;
    bytes.iter().take(length.min(9)).rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f))
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

fn key(field: u64, kind: u64) -> Vec<u8> {
    varint(field << 3 | kind)
}

fn bytes_field(field: u64, bytes: &[u8]) -> Vec<u8> {
    [key(field, BYTES), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// Seven bits at a time, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// CRC-32C, rotated and shifted as TFRecords want it.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    let crc = !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 })
    });
    crc.rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_documented_form() {
        // CRC-32C of "123456789" is 0xE3069283.
        assert_eq!(masked_crc32c(b"123456789"), 0xE306_9283u32.rotate_right(15).wrapping_add(0xA282_EAD8));
        assert_eq!(varint(300), [0xAC, 0x02]);
        let metrics = [("a/b".to_string(), 1.5)];
        let bytes = scalars(3, 1.5e9, &metrics);
        assert_eq!(bytes[..8], (bytes.len() as u64 - 16).to_le_bytes());
        let event = &bytes[12..bytes.len() - 4];
        let expected = [
            &[9][..],
            &1.5e9f64.to_le_bytes(),
            &[16, 3, 42, 12, 10, 10, 10, 3],
            b"a/b",
            &[21],
            &1.5f32.to_le_bytes(),
        ];
        assert_eq!(event, expected.concat());
    }
    #[test]
    fn wall_times_can_be_read_back() {
        let metrics = [("a/b".to_string(), 1.5)];
        let mut file = header(1.4e9);
        for (epoch, time) in [(1, 1.5e9), (2, 1.6e9), (300, 1.7e9)] {
            file.extend(scalars(epoch, time, &metrics));
        }
        let expected = BTreeMap::from([(1, 1.5e9), (2, 1.6e9), (300, 1.7e9)]);
        assert_eq!(times(&file), expected);
        // What can be read of a file that was cut off, and nothing of one that is none.
        assert_eq!(times(&file[..file.len() - 20]).len(), 2);
        assert_eq!(times(&[255; 100]), BTreeMap::new());
        // An older program's.
        assert_eq!(times(&scalars(7, 7.0, &metrics)), BTreeMap::new());
    }
}
