//! A value that is computed at most once per moment, however many pages ask for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a value is good for.
const GOOD_FOR: Duration = Duration::from_millis(500);

pub struct Fresh<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for Fresh<T> {
    fn default() -> Fresh<T> {
        Fresh(Mutex::new(None))
    }
}

impl<T> Fresh<T> {
    /// The newest value, or a new one.
    pub fn get(&self, compute: impl FnOnce() -> T) -> Arc<T> {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, value)) = newest.as_ref()
            && at.elapsed() < GOOD_FOR
        {
            return value.clone();
        }
        let value = Arc::new(compute());
        *newest = Some((Instant::now(), value.clone()));
        value
    }
}
