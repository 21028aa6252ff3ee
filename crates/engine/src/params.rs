//! The parameters of one network: a flat buffer with named views, so that clipping, Adam and checkpoints are one pass each.

use crate::rng::{Key, Rng};
use crate::{Buffer, DType, Device, Error, Result, Shape};

/// Parameters start on cache lines.
const ALIGN: usize = 16;

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element is this number.
    Constant(f32),
    /// Normal with this standard deviation.
    Normal(f32),
    /// Uniform in plus or minus this bound.
    Uniform(f32),
}

/// One named parameter in its network's flat buffer.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// Its name in checkpoints, such as "decoder.0.weight".
    pub name: String,
    /// Its dimensions.
    pub shape: Shape,
    /// How it starts.
    pub init: Init,
    /// Whether weight decay applies to it.
    pub decay: bool,
    /// Where it starts in the flat buffer.
    pub offset: usize,
}

/// A handle to one parameter of the [`Params`] it was declared for.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub(crate) index: usize,
    pub(crate) shape: Shape,
}

/// Collects the parameters of a network while its layers are built.
#[derive(Default)]
pub struct ParamsBuilder {
    specs: Vec<ParamSpec>,
    len: usize,
}

impl ParamsBuilder {
    /// No parameters yet.
    pub fn new() -> ParamsBuilder {
        ParamsBuilder::default()
    }

    /// Number of parameters declared so far.
    pub fn count(&self) -> usize {
        self.specs.iter().fold(0, |n: usize, spec| n.saturating_add(spec.shape.len()))
    }

    /// Declares a parameter.
    pub fn add(&mut self, name: impl Into<String>, shape: impl Into<Shape>, init: Init) -> Param {
        self.declare(name.into(), shape.into(), init, false)
    }

    /// Declares a parameter that weight decay applies to.
    pub fn add_decayed(&mut self, name: impl Into<String>, shape: impl Into<Shape>, init: Init) -> Param {
        self.declare(name.into(), shape.into(), init, true)
    }

    fn declare(&mut self, name: String, shape: Shape, init: Init, decay: bool) -> Param {
        let index = self.specs.len();
        self.specs.push(ParamSpec { name, shape, init, decay, offset: self.len });
        self.len = self.len.saturating_add(shape.len().checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX));
        Param { index, shape }
    }

    /// Trainable parameters, initialised from `seed`.
    pub fn build(self, device: &Device, name: &str, seed: u64) -> Result<Params> {
        self.finish(device, name, seed, true)
    }

    /// Parameters that are never trained: no gradients, no optimiser state.
    pub fn build_frozen(self, device: &Device, name: &str, seed: u64) -> Result<Params> {
        self.finish(device, name, seed, false)
    }

    fn finish(self, device: &Device, name: &str, seed: u64, trainable: bool) -> Result<Params> {
        let buffer = |what: &str| device.buffer::<f32>(format!("{name} {what}"), [self.len]);
        let values = buffer("parameters")?;
        let mut flat = vec![0.0; self.len];
        for spec in &self.specs {
            // Keyed by its name: adding a layer does not change how the others start.
            let mut rng = Rng::new(Key { seed, stream: hash(name), step: u64::from(hash(&spec.name)) });
            for value in &mut flat[spec.offset..spec.offset + spec.shape.len()] {
                *value = match spec.init {
                    Init::Constant(c) => c,
                    Init::Normal(std) => std * rng.normal(),
                    Init::Uniform(bound) => bound * (2.0 * rng.uniform() - 1.0),
                };
            }
        }
        values.write(&flat)?;
        let narrow =
            (device.float() != DType::F32).then(|| device.float_buffer(format!("{name} copy"), [self.len]));
        let narrow = narrow.transpose()?;
        if let Some(narrow) = &narrow {
            narrow.write(&flat)?;
        }
        let decayed = device.buffer::<u8>(format!("{name} decay"), [self.len / ALIGN])?;
        let mut flags = vec![0u8; self.len / ALIGN];
        for spec in self.specs.iter().filter(|spec| spec.decay) {
            flags[spec.offset / ALIGN..(spec.offset + spec.shape.len()).div_ceil(ALIGN)].fill(1);
        }
        decayed.write(&flags)?;
        let training = match trainable {
            false => None,
            true => Some(Training {
                decayed,
                gradients: buffer("gradients")?,
                first_moments: buffer("first moments")?,
                second_moments: buffer("second moments")?,
                updates: device.buffer::<i32>(format!("{name} update count"), [1])?,
            }),
        };
        Ok(Params { name: name.to_string(), specs: self.specs, values, narrow, training })
    }
}

/// FNV-1a, to give each network and each of its parameters their own numbers.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811C_9DC5, |h, byte| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The parameters of one network, with their gradients and optimiser state unless frozen.
pub struct Params {
    name: String,
    specs: Vec<ParamSpec>,
    pub(crate) values: Buffer,
    /// A copy as precise as the activations, where these are not f32. Whoever writes the values writes it too.
    pub(crate) narrow: Option<Buffer>,
    pub(crate) training: Option<Training>,
}

/// What only trained parameters have. All flat, all laid out like the values.
pub(crate) struct Training {
    pub gradients: Buffer,
    pub first_moments: Buffer,
    pub second_moments: Buffer,
    /// How many updates were made, for Adam's bias correction.
    pub updates: Buffer,
    /// 1 for every `ALIGN` parameters that weight decay applies to.
    pub decayed: Buffer,
}

impl Params {
    /// The network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters, in the order of their declaration.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Number of parameters, without the padding between them.
    pub fn count(&self) -> usize {
        self.specs.iter().map(|spec| spec.shape.len()).sum()
    }

    fn spec(&self, name: &str) -> Result<&ParamSpec> {
        let found = self.specs.iter().find(|spec| spec.name == name);
        found.ok_or_else(|| Error::UnknownParameter { name: name.to_string() })
    }

    /// A copy of one parameter's values.
    pub fn get(&self, name: &str) -> Result<Vec<f32>> {
        let spec = self.spec(name)?;
        self.values.read_range(spec.offset, spec.offset + spec.shape.len())
    }

    /// Replaces one parameter's values.
    pub fn set(&self, name: &str, values: &[f32]) -> Result<()> {
        let spec = self.spec(name)?;
        let expected = spec.shape.len();
        if values.len() != expected {
            return Err(Error::WrongLength { name: name.to_string(), expected, got: values.len() });
        }
        if let Some(narrow) = &self.narrow {
            narrow.write_at(spec.offset, values)?;
        }
        self.values.write_at(spec.offset, values)
    }

    /// The gradient of the last backward pass.
    pub fn gradient(&self, name: &str) -> Result<Vec<f32>> {
        let spec = self.spec(name)?;
        let training = self.training.as_ref().ok_or_else(|| Error::Frozen { name: self.name.clone() })?;
        training.gradients.read_range(spec.offset, spec.offset + spec.shape.len())
    }

    /// Everything an exact continuation needs beside the values: (name, buffer) of the optimiser's state. Empty when frozen.
    pub fn optimiser_state(&self) -> Vec<(&'static str, &Buffer)> {
        self.training.as_ref().map_or(Vec::new(), |t| {
            vec![
                ("first_moments", &t.first_moments),
                ("second_moments", &t.second_moments),
                ("updates", &t.updates),
            ]
        })
    }

    /// Takes over the values and the optimiser's state of the same network, maybe on another device.
    pub fn copy_from(&self, other: &Params) -> Result<()> {
        self.values.copy_from(&other.values)?;
        if let (Some(to), Some(from)) = (&self.narrow, &other.narrow) {
            to.copy_from(from)?;
        }
        let (to, from) = (self.optimiser_state(), other.optimiser_state());
        to.into_iter().zip(from).try_for_each(|((_, to), (_, from))| to.copy_from(from))
    }

    /// The flat buffer of all values, to be read.
    pub fn values(&self) -> &Buffer {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_named_views_of_one_buffer() -> Result<()> {
        let device = Device::under_test(1)?;
        let mut builder = ParamsBuilder::new();
        builder.add("gain", [3], Init::Constant(1.0));
        builder.add_decayed("weight", [2, 5], Init::Normal(0.5));
        let params = builder.build(&device, "net", 0)?;
        assert_eq!(params.count(), 13);
        assert_eq!(params.get("gain")?, vec![1.0; 3]);
        params.set("weight", &[4.0; 10])?;
        assert_eq!(params.get("weight")?, vec![4.0; 10]);
        assert_eq!(params.get("gain")?, vec![1.0; 3]);
        assert_eq!(
            params.set("weight", &[0.0; 9]).unwrap_err().to_string(),
            "`weight` holds 10 values, but 9 were given"
        );
        assert_eq!(params.get("wieght").unwrap_err().to_string(), "no parameter is called `wieght`");
        Ok(())
    }

    #[test]
    fn a_copy_has_the_values_and_the_state_of_the_optimiser() -> Result<()> {
        let device = Device::under_test(1)?;
        let build = |device: &Device, seed| {
            let mut builder = ParamsBuilder::new();
            builder.add("weight", [20, 50], Init::Normal(1.0));
            builder.build(device, "net", seed)
        };
        let (from, to) = (build(&device, 1)?, build(&device.beside()?, 2)?);
        for (number, (_, buffer)) in (1..).zip(from.optimiser_state()) {
            match buffer.dtype() {
                DType::I32 => buffer.write(&[number])?,
                _ => buffer.write(&vec![number as f32; buffer.shape().len()])?,
            }
        }
        to.copy_from(&from)?;
        assert_eq!(to.get("weight")?, from.get("weight")?);
        let narrow = |params: &Params| params.narrow.as_ref().map(Buffer::read::<f32>).transpose();
        assert_eq!(narrow(&to)?, narrow(&from)?);
        let state = |params: &Params| -> Result<(Vec<f32>, Vec<f32>, Vec<i32>)> {
            let [(_, first), (_, second), (_, updates)] = params.optimiser_state()[..] else { panic!() };
            Ok((first.read()?, second.read()?, updates.read()?))
        };
        assert_eq!(state(&to)?, state(&from)?);
        assert_eq!(state(&to)?.2, [3]);
        let mut other = ParamsBuilder::new();
        other.add("weight", [20, 51], Init::Constant(0.0));
        assert!(matches!(other.build(&device, "net", 0)?.copy_from(&from), Err(Error::WrongLength { .. })));
        Ok(())
    }

    #[test]
    fn initial_values_follow_the_seed_and_the_distribution() -> Result<()> {
        let device = Device::under_test(1)?;
        let build = |seed| {
            let mut builder = ParamsBuilder::new();
            builder.add("normal", [10_000], Init::Normal(0.02));
            builder.add("uniform", [10_000], Init::Uniform(0.5));
            builder.build(&device, "net", seed)
        };
        let (a, b, c) = (build(1)?, build(1)?, build(2)?);
        assert_eq!(a.get("normal")?, b.get("normal")?);
        assert_ne!(a.get("normal")?, c.get("normal")?);
        let std = |x: Vec<f32>| (x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32).sqrt();
        assert!((std(a.get("normal")?) / 0.02 - 1.0).abs() < 0.03);
        assert!((std(a.get("uniform")?) / (0.5 / 3f32.sqrt()) - 1.0).abs() < 0.03);
        Ok(())
    }
}
