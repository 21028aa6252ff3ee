//! Timing everything that runs by itself.

use std::sync::atomic::Ordering;

use cudarc::driver::{result, sys};

use super::core::driver;
use super::gpu::Gpu;
use crate::Result;

/// What ran, between which events; see [`Gpu::begin_trace`].
pub(super) type Trace = Vec<(String, Event, Event)>;

#[derive(Clone, Copy)]
pub(super) struct Event(sys::CUevent);

// SAFETY: a handle of the driver's, used under the GPU's rules.
unsafe impl Send for Event {}

impl Gpu {
    /// Whether everything is being timed.
    pub fn traces(&self) -> bool {
        self.tracing.load(Ordering::Relaxed)
    }

    /// From here to [`end_trace`](Gpu::end_trace) everything that runs is timed by itself.
    pub fn begin_trace(&self) {
        self.tracing.store(true, Ordering::Relaxed);
        if let Ok(mut trace) = self.trace.lock() {
            *trace = Some(Vec::new());
        }
    }

    /// (what ran, seconds), in order.
    pub fn end_trace(&self) -> Result<Vec<(String, f64)>> {
        self.tracing.store(false, Ordering::Relaxed);
        let trace = self.trace.lock().ok().and_then(|mut trace| trace.take()).unwrap_or_default();
        self.core.wait()?;
        let mut times = Vec::with_capacity(trace.len());
        for (name, start, end) in trace {
            // SAFETY: events that were recorded in `timed`, and are over.
            let ms = unsafe {
                let ms = result::event::elapsed(start.0, end.0).map_err(driver("timing"))?;
                let _ = result::event::destroy(start.0);
                let _ = result::event::destroy(end.0);
                ms
            };
            times.push((name, f64::from(ms) / 1e3));
        }
        Ok(times)
    }

    pub(super) fn timed(
        &self,
        name: impl FnOnce() -> String,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Ok(mut trace) = self.trace.lock() else { return work() };
        let Some(trace) = trace.as_mut() else { return work() };
        // While a step is captured the event becomes part of the CUDA graph.
        let flags = match self.core.capturing.load(Ordering::Relaxed) {
            true => sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32,
            false => sys::CUevent_record_flags::CU_EVENT_RECORD_DEFAULT as u32,
        };
        let mark = || -> Result<Event> {
            let event =
                result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(driver("timing"))?;
            // SAFETY: the event was just created, the stream is alive.
            unsafe { sys::cuEventRecordWithFlags(event, self.core.stream, flags) }
                .result()
                .map_err(driver("timing"))?;
            Ok(Event(event))
        };
        let start = mark()?;
        work()?;
        trace.push((name(), start, mark()?));
        Ok(())
    }
}
