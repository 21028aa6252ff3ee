//! Layers: handles to their parameters, built together with them. Names are the reference release's.

use engine::{Activation, Device, Error, Init, Param, Params, ParamsBuilder, Result, Stride, Tape, Tensor};

/// How a parameter lies in memory compared with the reference release (PyTorch, images NCHW; ours are NHWC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same.
    Same,
    /// Ours [O, I], theirs [O, I, 1, 1].
    Conv1x1,
    /// Ours [O, 3, 3, I], theirs [O, I, 3, 3].
    Conv3x3,
    /// One weight per channel: ours `[C]`, theirs [1, C, 1, 1].
    ChannelWeights,
    /// A linear layer over a flattened image: our columns are in the order (height, width, channel), theirs (channel, height, width).
    Flattened { height: usize, width: usize, channels: usize },
}

/// A network's parameters and how each lies in memory.
pub struct Network {
    pub params: Params,
    layouts: Vec<Layout>,
}

impl Network {
    /// The layouts, in the order of [`Params::specs`].
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }
}

/// Collects parameters under dotted names.
pub(crate) struct Builder {
    params: ParamsBuilder,
    layouts: Vec<Layout>,
    prefix: String,
    linear_init: LinearInit,
}

/// How linear layers start.
#[derive(Clone, Copy)]
pub(crate) enum LinearInit {
    /// PyTorch's default: weight and bias uniform in +-1/sqrt(inputs).
    Uniform,
    /// Weights normal with this deviation, biases zero; decayed by AdamW.
    Normal(f32),
}

impl Builder {
    pub fn new(linear_init: LinearInit) -> Builder {
        Builder { params: ParamsBuilder::new(), layouts: Vec::new(), prefix: String::new(), linear_init }
    }

    /// Allocates the parameters, unless there are more than `limit`: a damaged file must not ask for all the memory there is.
    pub fn finish(self, device: &Device, name: &str, seed: u64, limit: usize) -> Result<Network> {
        self.check_count(name, limit)?;
        Ok(Network { params: self.params.build(device, name, seed)?, layouts: self.layouts })
    }

    fn check_count(&self, name: &str, limit: usize) -> Result<()> {
        match self.params.count() {
            count if count > limit => Err(Error::TooManyParameters { name: name.into(), count, limit }),
            _ => Ok(()),
        }
    }

    /// [`finish`](Builder::finish) for parameters that are not trained.
    pub fn finish_frozen(self, device: &Device, name: &str, seed: u64, limit: usize) -> Result<Network> {
        self.check_count(name, limit)?;
        Ok(Network { params: self.params.build_frozen(device, name, seed)?, layouts: self.layouts })
    }

    /// Builds something under `name.`
    pub fn within<R>(&mut self, name: &str, build: impl FnOnce(&mut Builder) -> R) -> R {
        let outer = self.prefix.len();
        self.prefix.push_str(name);
        self.prefix.push('.');
        let built = build(self);
        self.prefix.truncate(outer);
        built
    }

    pub fn param(&mut self, name: &str, shape: &[usize], init: Init, layout: Layout) -> Result<Param> {
        self.layouts.push(layout);
        let shape = engine::Shape::try_from(shape)?;
        Ok(self.params.add(format!("{}{name}", self.prefix), shape, init))
    }

    pub fn embedding(&mut self, name: &str, rows: usize, width: usize, init: Init) -> Result<Param> {
        self.within(name, |b| b.param("weight", &[rows, width], init, Layout::Same))
    }

    pub fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        self.linear_with(name, inputs, outputs, Layout::Same)
    }

    pub fn conv1x1(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        self.linear_with(name, inputs, outputs, Layout::Conv1x1)
    }

    pub fn linear_with(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        layout: Layout,
    ) -> Result<Linear> {
        let bound = Init::Uniform(1.0 / (inputs as f32).sqrt());
        self.within(name, |b| match b.linear_init {
            LinearInit::Uniform => Ok(Linear {
                weight: b.param("weight", &[outputs, inputs], bound, layout)?,
                bias: b.param("bias", &[outputs], bound, Layout::Same)?,
            }),
            LinearInit::Normal(std) => {
                b.layouts.push(layout);
                let name = format!("{}weight", b.prefix);
                Ok(Linear {
                    weight: b.params.add_decayed(name, [outputs, inputs], Init::Normal(std)),
                    bias: b.param("bias", &[outputs], Init::Constant(0.0), Layout::Same)?,
                })
            }
        })
    }

    pub fn conv3x3(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Conv> {
        let init = Init::Uniform(1.0 / ((9 * inputs) as f32).sqrt());
        self.within(name, |b| {
            Ok(Conv {
                weight: b.param("weight", &[outputs, 3, 3, inputs], init, Layout::Conv3x3)?,
                bias: b.param("bias", &[outputs], init, Layout::Same)?,
            })
        })
    }

    /// Gain and shift of a group-norm or layer-norm.
    pub fn norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        self.within(name, |b| {
            Ok(Norm {
                gain: b.param("weight", &[width], Init::Constant(1.0), Layout::Same)?,
                shift: b.param("bias", &[width], Init::Constant(0.0), Layout::Same)?,
            })
        })
    }
}

/// x W^T + b over the last dimension; a 1x1 convolution is one.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub weight: Param,
    pub bias: Param,
}

impl Linear {
    /// Weight and bias.
    pub fn tensors(&self, tape: &mut Tape, params: &Params) -> Result<[Tensor; 2]> {
        Ok([tape.param(params, self.weight)?, tape.param(params, self.bias)?])
    }

    pub fn forward(&self, tape: &mut Tape, params: &Params, x: Tensor) -> Result<Tensor> {
        self.activated(tape, params, x, Activation::None)
    }

    pub fn activated(
        &self,
        tape: &mut Tape,
        params: &Params,
        x: Tensor,
        activation: Activation,
    ) -> Result<Tensor> {
        let (weight, bias) = (tape.param(params, self.weight)?, tape.param(params, self.bias)?);
        tape.linear(x, weight, Some(bias), activation)
    }
}

/// A 3x3 convolution.
#[derive(Clone, Copy)]
pub(crate) struct Conv {
    weight: Param,
    bias: Param,
}

impl Conv {
    /// Weight and bias.
    pub fn tensors(&self, tape: &mut Tape, params: &Params) -> Result<[Tensor; 2]> {
        Ok([tape.param(params, self.weight)?, tape.param(params, self.bias)?])
    }

    pub fn forward(&self, tape: &mut Tape, params: &Params, x: Tensor, stride: Stride) -> Result<Tensor> {
        let (weight, bias) = (tape.param(params, self.weight)?, tape.param(params, self.bias)?);
        tape.conv3x3(x, weight, bias, stride)
    }

    pub fn relu(&self, tape: &mut Tape, params: &Params, x: Tensor) -> Result<Tensor> {
        let (weight, bias) = (tape.param(params, self.weight)?, tape.param(params, self.bias)?);
        tape.conv3x3_relu(x, weight, bias)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Norm {
    gain: Param,
    shift: Param,
}

pub(crate) const LAYER_NORM_EPSILON: f32 = 1e-5;
pub(crate) const GROUP_NORM_EPSILON: f32 = 1e-6;

impl Norm {
    /// Gain and shift.
    pub fn tensors(&self, tape: &mut Tape, params: &Params) -> Result<[Tensor; 2]> {
        Ok([tape.param(params, self.gain)?, tape.param(params, self.shift)?])
    }

    /// GroupNorm with eps 1e-6, optionally followed by swish.
    pub fn group(
        &self,
        tape: &mut Tape,
        params: &Params,
        x: Tensor,
        groups: usize,
        swish: bool,
    ) -> Result<Tensor> {
        let (gain, shift) = (tape.param(params, self.gain)?, tape.param(params, self.shift)?);
        tape.group_norm(x, gain, shift, groups, GROUP_NORM_EPSILON, swish)
    }

    /// LayerNorm with eps 1e-5.
    pub fn layer(&self, tape: &mut Tape, params: &Params, x: Tensor) -> Result<Tensor> {
        let [gain, shift] = self.tensors(tape, params)?;
        tape.layer_norm(x, gain, shift, LAYER_NORM_EPSILON)
    }
}
