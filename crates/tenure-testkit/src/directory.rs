//! A directory of a test's own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of a test's own, in the place for temporary files. It is removed at the end.
#[derive(Debug)]
pub struct TestDirectory(PathBuf);

impl TestDirectory {
    /// Makes one.
    ///
    /// # Panics
    /// If it cannot.
    #[allow(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> TestDirectory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tenure-test-{}-{count}", std::process::id()));
        // An earlier process with this id may have been killed before it could remove its own.
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir(&path).expect("a directory for temporary files");
        TestDirectory(path)
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        // A process that is still ending may be writing; what is left is among the temporary files.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
