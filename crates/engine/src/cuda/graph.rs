//! Steps as CUDA graphs: captured once, launched as often as wanted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::{result, sys};

use super::core::{Core, driver};
use super::gpu::Gpu;
use crate::Result;

impl Gpu {
    /// From here to the end of the capture, work becomes part of a CUDA graph instead of being done.
    pub fn begin_capture(&self) -> Result<Capture<'_>> {
        // The arena may have to take memory for the step while it is captured.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and nobody else captures it.
        unsafe { result::stream::begin_capture(self.core.stream(), mode) }
            .map_err(driver("capturing a step"))?;
        self.core.capturing.store(true, Ordering::Relaxed);
        Ok(Capture { gpu: self, over: false })
    }

    fn end_capture(&self) -> Result<Graph> {
        self.core.capturing.store(false, Ordering::Relaxed);
        // SAFETY: begun by `begin_capture`.
        let graph =
            unsafe { result::stream::end_capture(self.core.stream()) }.map_err(driver("capturing a step"))?;
        // SAFETY: a graph that was just captured; its executable form does not need it any more.
        let exec = unsafe {
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            exec
        };
        Ok(Graph { exec: exec.map_err(driver("preparing a captured step"))?, core: self.core.clone() })
    }
}

/// A step being captured. The capture ends with this, also when the step panics.
pub(crate) struct Capture<'a> {
    gpu: &'a Gpu,
    over: bool,
}

impl Capture<'_> {
    pub fn end(mut self) -> Result<Graph> {
        self.over = true;
        self.gpu.end_capture()
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.gpu.end_capture();
        }
    }
}

/// A captured step: a CUDA graph that can be launched.
pub(crate) struct Graph {
    exec: sys::CUgraphExec,
    core: Arc<Core>,
}

// SAFETY: as for the core.
unsafe impl Send for Graph {}

impl Graph {
    pub fn launch(&self) -> Result<()> {
        // SAFETY: both are alive; the memory it uses is kept by whoever keeps the graph.
        unsafe { result::graph::launch(self.exec, self.core.stream()) }
            .map_err(driver("running a captured step"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created in `end_capture`.
        unsafe {
            let _ = result::ctx::set_current(self.core.context);
            let _ = result::stream::synchronize(self.core.stream());
            let _ = result::graph::exec_destroy(self.exec);
        }
    }
}
