//! What the tests of the report share.

use std::path::PathBuf;

/// An empty folder of one test, removed at its end, also when the test fails.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// `name`: of this test alone.
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("iris-report-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
