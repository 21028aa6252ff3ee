//! Bytes and integers as numbers.

use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{Gpu, Grid, View, kernels};
use crate::memory::Block;
use crate::{DType, Result, Tape, Tensor};

impl Tape {
    /// Bytes to numbers: x * scale + shift. 1/255 and 0 give [0, 1]; 2/255 and -1 give [-1, 1].
    pub fn frames(&mut self, x: Tensor, scale: f32, shift: f32) -> Result<Tensor> {
        self.check("frames", x, DType::U8)?;
        let dtype = self.float();
        let mut out = self.alloc(x.len(), dtype)?;
        match self.backend() {
            Backend::Cpu => self.cpu_frames(x, scale, shift, &mut out),
            Backend::Cuda(gpu) => self.gpu_frames(&gpu, x, scale, shift, &out)?,
        }
        Ok(self.push(out, x.shape(), dtype, false))
    }

    fn cpu_frames(&self, x: Tensor, scale: f32, shift: f32, out: &mut Block) {
        const CHUNK: usize = 1 << 14;
        let bytes = self.u8(x);
        cpu::chunks_mut(out.f32_mut(), CHUNK, |i, out| {
            for (o, b) in out.iter_mut().zip(&bytes[i * CHUNK..]) {
                *o = f32::from(*b) * scale + shift;
            }
        });
    }

    fn gpu_frames(&self, gpu: &Gpu, x: Tensor, scale: f32, shift: f32, out: &Block) -> Result<()> {
        let (n, to) = (x.len(), View::new(out.at(), self.float()));
        kernels::from_bytes(gpu, Grid::elements(gpu, n), to, self.at(x), n, scale, shift)
    }

    /// Integers (classes, flags) to numbers: x * scale + shift.
    pub fn integers(&mut self, x: Tensor, scale: f32, shift: f32) -> Result<Tensor> {
        self.check("integers", x, DType::I32)?;
        let mut out = self.alloc(x.len(), DType::F32)?;
        match self.backend() {
            Backend::Cpu => {
                for (o, x) in out.f32_mut().iter_mut().zip(self.i32(x)) {
                    *o = *x as f32 * scale + shift;
                }
            }
            Backend::Cuda(gpu) => {
                let (n, to) = (x.len(), View::new(out.at(), DType::F32));
                kernels::from_integers(&gpu, Grid::elements(&gpu, n), to, self.at(x), n, scale, shift)?;
            }
        }
        Ok(self.push(out, x.shape(), DType::F32, false))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Error, Key, Result, Stepper};

    #[test]
    fn bytes_become_numbers_in_either_range() -> Result<()> {
        let device = Device::under_test(1)?;
        let buffer = device.buffer::<u8>("frames", [256])?;
        let bytes: Vec<u8> = (0..=255).collect();
        buffer.write(&bytes)?;
        Stepper::new(&device, Key::new(0, 0)).run(|tape| {
            let raw = tape.buffer(&buffer)?;
            let unit = tape.frames(raw, 1.0 / 255.0, 0.0)?;
            let signed = tape.frames(raw, 2.0 / 255.0, -1.0)?;
            let values = tape.read::<f32>(unit)?;
            assert_eq!((values[0], values[255]), (0.0, 1.0));
            let values = tape.read::<f32>(signed)?;
            assert!(values[0] == -1.0 && (values[255] - 1.0).abs() < 1e-6);
            assert!(matches!(tape.frames(unit, 1.0, 0.0), Err(Error::DTypeMismatch { op: "frames", .. })));
            Ok(())
        })
    }
}
