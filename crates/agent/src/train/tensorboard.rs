//! Metrics as a TensorBoard event file: TFRecords of `Event` messages, written by hand because four fields are all we need.
//!
//! An event's wall time is its epoch, not the clock's: a run that was stopped and continued has the same file as one that was not.

/// A record: length, its checksum, the bytes, their checksum.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc32c(&length).to_le_bytes(), data, &masked_crc32c(data).to_le_bytes()].concat()
}

/// What an event file starts with.
pub(super) fn header() -> Vec<u8> {
    // Event { wall_time (1): 0, file_version (3) }
    let mut event = key(1, FIXED64);
    event.extend(0f64.to_le_bytes());
    event.extend(bytes_field(3, b"brain.Event:2"));
    record(&event)
}

/// The metrics of an epoch.
pub(super) fn scalars(epoch: usize, metrics: &[(String, f64)]) -> Vec<u8> {
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
    event.extend((epoch as f64).to_le_bytes());
    event.extend(key(2, VARINT));
    event.extend(varint(epoch as u64));
    event.extend(bytes_field(5, &summary));
    record(&event)
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
        let bytes = scalars(3, &metrics);
        assert_eq!(bytes[..8], (bytes.len() as u64 - 16).to_le_bytes());
        let event = &bytes[12..bytes.len() - 4];
        let expected = [
            &[9][..],
            &3f64.to_le_bytes(),
            &[16, 3, 42, 12, 10, 10, 10, 3],
            b"a/b",
            &[21],
            &1.5f32.to_le_bytes(),
        ];
        assert_eq!(event, expected.concat());
    }
}
