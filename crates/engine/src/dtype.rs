//! Element types, and how precisely a GPU computes.

/// The element types of tensors and buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floats: everything that learns.
    F32,
    /// How a GPU may store activations. Ops take it wherever they take F32; the host reads and writes it as f32.
    BF16,
    /// 32-bit integers: tokens, actions, labels, flags.
    I32,
    /// Bytes: frames.
    U8,
}

impl DType {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::BF16 => 2,
            DType::U8 => 1,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::BF16)
    }

    /// Whether an op that expects `self` can take `other`.
    pub(crate) fn takes(self, other: DType) -> bool {
        self == other || (self.is_float() && other.is_float())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::U8 => "u8",
        })
    }
}

/// A Rust type that can be an element.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The element type it stands for.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

/// The bits of a bf16: the upper half of an f32's. The host only converts it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

// SAFETY: two bytes without padding, for which every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Bf16 {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Bf16 {}

impl Element for Bf16 {
    const DTYPE: DType = DType::BF16;
}

/// Rounded to the nearest, ties to even.
pub(crate) fn to_bf16(values: &[f32]) -> Vec<Bf16> {
    let narrow = |x: &f32| {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
        Bf16(if x.is_nan() { 0x7FC0 } else { (rounded >> 16) as u16 })
    };
    values.iter().map(narrow).collect()
}

pub(crate) fn from_bf16(values: &[Bf16]) -> Vec<f32> {
    values.iter().map(|x| f32::from_bits(u32::from(x.0) << 16)).collect()
}

/// How a GPU computes. The CPU always computes in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Activations in bf16; parameters, statistics, losses and optimiser state in f32.
    #[default]
    Bf16,
    /// Everything in f32, as on the CPU.
    F32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_to_the_nearest() {
        let back = |x: f32| from_bf16(&to_bf16(&[x]))[0];
        assert_eq!([1.0, -2.5, 0.0, f32::INFINITY].map(back), [1.0, -2.5, 0.0, f32::INFINITY]);
        assert_eq!(back(1.0 + 1.0 / 256.0), 1.0, "a tie goes to the even neighbour");
        assert_eq!(back(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert!(back(f32::NAN).is_nan());
    }
}
