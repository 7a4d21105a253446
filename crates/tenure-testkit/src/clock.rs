//! The wall clock of a server.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;

/// The source of the library that a server is started with.
const SHIM: &str = include_str!("clock_shim.c");

/// Where a test moves the wall clock of a server while it runs. Its monotonic clock is the machine's.
///
/// It works on programs that ask the C library for the time, as Redis, PostgreSQL and MariaDB do. Redis also
/// measures some waiting by the wall clock: while the clock is frozen, `BLPOP` and `WAIT` do not time out.
#[derive(Debug)]
pub struct ServerClock {
    file: File,
    setting: Mutex<Setting>,
}

/// What the server reads.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    /// Where the clock stands still; 0 if it does not.
    frozen_ns: i64,
    /// How far it is ahead of the machine's otherwise.
    offset_ns: i64,
}

impl ServerClock {
    /// Makes a clock in a server's directory, and has the server started with it. It needs a C compiler.
    ///
    /// # Panics
    /// If that fails.
    pub fn install(directory: &Path, server: &mut Command) -> ServerClock {
        let (source, library) = (directory.join("clock_shim.c"), directory.join("clock_shim.so"));
        fs::write(&source, SHIM).expect("a file of the server");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        let Output { status, stderr, .. } = compiler.output().expect("cc");
        assert!(status.success(), "cc: {}", String::from_utf8_lossy(&stderr));
        let path = directory.join("clock");
        let file = File::create(&path).expect("a file of the server");
        server.env("LD_PRELOAD", library).env("TENURE_CLOCK", path);
        let clock = ServerClock { file, setting: Mutex::default() };
        clock.change(|_| ());
        clock
    }

    /// Lets the clock stand still at a time since 1970.
    ///
    /// # Panics
    /// If that is at 1970 or after 2262.
    pub fn freeze(&self, at: Duration) {
        assert!(!at.is_zero(), "no server lives in 1970");
        self.change(|setting| setting.frozen_ns = nanoseconds(at));
    }

    /// Moves the clock forward, frozen or not.
    pub fn advance(&self, by: Duration) {
        self.step(nanoseconds(by));
    }

    /// Moves the clock back, frozen or not.
    pub fn step_back(&self, by: Duration) {
        self.step(-nanoseconds(by));
    }

    /// Lets the clock go again: with the machine's clock, at the distance that was stepped while it went.
    pub fn thaw(&self) {
        self.change(|setting| setting.frozen_ns = 0);
    }

    fn step(&self, by_ns: i64) {
        self.change(|setting| match setting.frozen_ns {
            0 => setting.offset_ns += by_ns,
            _ => setting.frozen_ns += by_ns,
        });
    }

    fn change(&self, change: impl FnOnce(&mut Setting)) {
        let mut setting = self.setting.lock().expect("no change panics");
        change(&mut setting);
        // Each number by itself: a change is one of them, and is seen whole or not at all.
        for (index, number) in [setting.frozen_ns, setting.offset_ns].into_iter().enumerate() {
            self.file.write_all_at(&number.to_ne_bytes(), index as u64 * 8).expect("a file of the server");
        }
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).expect("a time before 2262")
}
