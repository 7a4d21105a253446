//! The checks that every engine must pass, with processes of this machine.

use std::path::PathBuf;
use std::sync::Arc;

use tenure_conformance::Setup;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{Connect, Engine};
use tenure_local::{Config, Local};

/// A directory of its own for each check, removed by whoever made it.
struct Directory {
    path: PathBuf,
    is_mine: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_mine {
            // A client that is still closing may be writing; what is left is in the directory for such files.
            std::fs::remove_dir_all(&self.path).ok();
        }
    }
}

impl Setup for Directory {
    fn start() -> Directory {
        let name = format!("tenure-conformance-{}-{:016x}", std::process::id(), SystemClock.random());
        Directory { path: std::env::temp_dir().join(name), is_mine: true }
    }

    fn at(address: &str) -> Directory {
        Directory { path: address.into(), is_mine: false }
    }

    fn address(&self) -> String {
        self.path.to_str().expect("the path was made of text").to_owned()
    }

    fn connector(&self) -> Connect {
        let config = Config::in_directory(&self.path);
        Box::new(move |client| {
            Box::pin(async move {
                let engine: Arc<dyn Engine> =
                    Arc::new(Local::connect(config, client, Arc::new(SystemClock)).await?);
                Ok(engine)
            })
        })
    }

    fn failpoints() -> &'static [&'static str] {
        &[
            "local.before_begin",
            "local.in_transaction",
            "local.before_commit",
            "local.after_commit",
            "local.before_bell",
        ]
    }
}

tenure_conformance::suite!(Directory);
