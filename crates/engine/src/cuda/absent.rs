//! What stands for a GPU in builds without the feature: types of which there is no value.

use std::sync::Arc;

use super::kernels::Kernel;
use super::{Arg, Convolution, Direction, Grid, Product, Tail};
use crate::{Error, Precision, Result};

pub(crate) enum Gpu {}
pub(crate) enum DeviceMemory {}
pub(crate) enum Graph {}
pub(crate) struct Capture<'a>(&'a Gpu);

impl Gpu {
    pub fn new(_precision: Precision) -> Result<Arc<Gpu>> {
        let reason = "this build has no GPU support".into();
        Err(Error::NoGpu { reason })
    }

    pub fn beside(&self) -> Result<Arc<Gpu>> {
        match *self {}
    }

    pub fn name(&self) -> &str {
        match *self {}
    }

    pub fn precision(&self) -> Precision {
        match *self {}
    }

    pub fn synchronise(&self) -> Result<()> {
        match *self {}
    }

    pub fn has_clusters(&self) -> bool {
        match *self {}
    }

    pub fn shared_memory(&self) -> usize {
        match *self {}
    }

    pub fn memory(&self) -> (usize, usize) {
        match *self {}
    }

    pub fn forget_peak_memory(&self) {
        match *self {}
    }

    pub fn free_memory(&self) -> usize {
        match *self {}
    }

    pub fn enter(&self) -> Result<()> {
        match *self {}
    }

    pub fn allocate(&self, _what: &str, _bytes: usize) -> Result<DeviceMemory> {
        match *self {}
    }

    pub fn zero(&self, _at: u64, _bytes: usize) -> Result<()> {
        match *self {}
    }

    pub fn fill_bytes(&self, _at: u64, _byte: u8, _count: usize) -> Result<()> {
        match *self {}
    }

    pub fn fill_words(&self, _at: u64, _word: u32, _count: usize) -> Result<()> {
        match *self {}
    }

    pub fn copy(&self, _to: u64, _from: u64, _bytes: usize) -> Result<()> {
        match *self {}
    }

    pub fn upload(&self, _to: u64, _bytes: &[u8]) -> Result<()> {
        match *self {}
    }

    pub fn processors(&self) -> usize {
        match *self {}
    }

    pub(super) fn launch(&self, _kernel: &'static Kernel, _grid: Grid, _args: &[Arg]) -> Result<()> {
        match *self {}
    }

    pub fn traces(&self) -> bool {
        match *self {}
    }

    pub fn begin_trace(&self) {
        match *self {}
    }

    pub fn end_trace(&self) -> Result<Vec<(String, f64)>> {
        match *self {}
    }

    pub(super) fn launch_chained(&self, _kernel: &'static Kernel, _grid: Grid, _args: &[Arg]) -> Result<()> {
        match *self {}
    }

    pub(super) fn launch_clustered(
        &self,
        _kernel: &'static Kernel,
        _grid: Grid,
        _args: &[Arg],
    ) -> Result<()> {
        match *self {}
    }

    pub fn resident_clusters(&self, _kernel: &'static str, _threads: usize) -> usize {
        match *self {}
    }

    pub fn product(&self, _product: &Product) -> Result<()> {
        match *self {}
    }

    pub fn convolve(
        &self,
        _shape: &Convolution,
        _direction: Direction,
        _x: u64,
        _weight: u64,
        _y: u64,
        _accumulate: bool,
    ) -> Result<()> {
        match *self {}
    }

    pub fn convolve_fused(
        &self,
        _shape: &Convolution,
        _x: u64,
        _weight: u64,
        _y: u64,
        _tail: Tail,
    ) -> Result<bool> {
        match *self {}
    }

    pub fn fault(&self) -> u64 {
        match *self {}
    }

    pub fn op(&self, _name: &'static str) -> i32 {
        match *self {}
    }

    pub fn begin_capture(&self) -> Result<Capture<'_>> {
        match *self {}
    }
}

impl Capture<'_> {
    pub fn end(self) -> Result<Graph> {
        match *self.0 {}
    }
}

impl DeviceMemory {
    pub fn at(&self) -> u64 {
        match *self {}
    }

    pub fn bytes(&self) -> usize {
        match *self {}
    }

    pub fn write(&self, _start: usize, _bytes: &[u8]) -> Result<()> {
        match *self {}
    }

    pub fn read(&self, _start: usize, _bytes: &mut [u8]) -> Result<()> {
        match *self {}
    }

    pub fn copy_from(&self, _other: &DeviceMemory, _bytes: usize) -> Result<()> {
        match *self {}
    }
}

impl Graph {
    pub fn launch(&self) -> Result<()> {
        match *self {}
    }
}
