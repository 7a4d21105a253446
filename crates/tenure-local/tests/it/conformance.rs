//! The checks that every engine must pass, with processes of this machine.

use std::path::PathBuf;
use std::sync::Arc;

use tenure_conformance::Setup;
use tenure_core::clock::SystemClock;
use tenure_core::engine::Connect;
use tenure_local::{Config, Local};
use tenure_testkit::TestDirectory;

/// A directory of its own for each check, removed by whoever made it.
struct Directory {
    path: PathBuf,
    _files: Option<TestDirectory>,
}

impl Setup for Directory {
    fn start() -> Directory {
        let files = TestDirectory::new();
        Directory { path: files.path().join("place"), _files: Some(files) }
    }

    fn at(address: &str) -> Directory {
        Directory { path: address.into(), _files: None }
    }

    fn address(&self) -> String {
        self.path.to_str().expect("the path was made of text").to_owned()
    }

    fn connector(&self) -> Connect {
        let config = Config::in_directory(&self.path);
        Connect::new("local", async move |client| {
            Ok(Arc::new(Local::connect(config, client, Arc::new(SystemClock)).await?))
        })
    }

    fn failpoints(&self) -> &'static [&'static str] {
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
