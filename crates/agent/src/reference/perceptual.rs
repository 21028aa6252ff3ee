//! The pretrained perceptual network from the two files it is published in: torchvision's VGG16, and LPIPS's weight per channel.

use std::collections::BTreeSet;
use std::path::Path;

use engine::Device;

use super::import::is_ours_alone;
use super::tensors::TensorFile;
use crate::Perceptual;
use crate::checkpoint::{CheckpointError, Result};

/// Reads VGG16's state dict (`features.N.weight` and `.bias`; the classifier is not used) and LPIPS's (`linN.model.1.weight`), each as `torch.save`
/// wrote it or as safetensors.
pub fn import_perceptual(device: &Device, vgg: &Path, lpips: &Path) -> Result<Perceptual> {
    let (mut vgg, mut lpips) = (TensorFile::open(vgg)?, TensorFile::open(lpips)?);
    let names = |file: &TensorFile| file.names().map(String::from).collect::<BTreeSet<_>>();
    let (mut unused_vgg, mut unused_lpips) = (names(&vgg), names(&lpips));
    let perceptual = Perceptual::new(device, 0.0)?;
    let network = &perceptual.network;
    for (spec, layout) in network.params.specs().iter().zip(network.layouts()) {
        if is_ours_alone("tokenizer.lpips", &spec.name) {
            continue;
        }
        let (file, unused, name) = match torchvision_name(&spec.name) {
            Some(name) => (&mut vgg, &mut unused_vgg, name),
            None => (&mut lpips, &mut unused_lpips, spec.name.clone()),
        };
        let theirs = file.read(&name, &layout.reference_shape(spec.shape.dims()))?;
        network.params.set(&spec.name, &layout.from_reference(spec.shape.dims(), &theirs))?;
        unused.remove(&name);
    }
    unused_vgg.retain(|name| !name.starts_with("classifier."));
    for (file, unused) in [(vgg, unused_vgg), (lpips, unused_lpips)] {
        if let Some(name) = unused.into_iter().next() {
            return Err(CheckpointError::ExtraWeights { path: file.path().into(), name });
        }
    }
    Ok(perceptual)
}

/// `net.slice2.5.weight` -> `features.5.weight`: the slices only say which block a layer belongs to.
fn torchvision_name(name: &str) -> Option<String> {
    let (_, layer) = name.strip_prefix("net.slice")?.split_once('.')?;
    Some(format!("features.{layer}"))
}
