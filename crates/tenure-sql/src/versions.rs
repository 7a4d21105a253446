//! Which version the tables are of. Another client may make the next one of them while this one is at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tenure_core::error::ErrorKind;

use crate::fault::Fault;
use crate::schema::{Tables, VERSION, VERSION_WITH_HOLDS};

/// The versions of the tables of the locks that this program knows.
pub const VERSIONS: [u32; 2] = [VERSION, VERSION_WITH_HOLDS];

/// Both versions that this program knows, and which it is.
#[derive(Debug)]
pub struct Versions {
    old: Tables,
    new: Tables,
    present: AtomicU32,
    doubt: Arc<AtomicBool>,
}

impl Versions {
    /// Names the tables with a prefix. `present`: which version they are of.
    pub fn new(prefix: &str, deletes: bool, present: u32) -> Versions {
        let tables = |tables: Tables| Tables { deletes, ..tables };
        Versions {
            old: tables(Tables::new(prefix)),
            new: tables(Tables::with_holds(prefix)),
            present: AtomicU32::new(present),
            doubt: Arc::default(),
        }
    }

    /// The tables as they are, as far as this client knows.
    pub fn tables(&self) -> &Tables {
        if self.number() == VERSION { &self.old } else { &self.new }
    }

    /// Their version.
    pub fn number(&self) -> u32 {
        self.present.load(Ordering::Acquire)
    }

    /// What a connection that is lent is to set when a table is not there: then the version is read, by `present`, before the next one is
    /// lent. `None` if that was done just now and it is what it was: the table is missing. What is sent may have been written down
    /// before the version was known to be another, so else it is tried again.
    ///
    /// # Errors
    /// Those of `present`.
    pub async fn doubt(
        &self,
        present: impl Future<Output = Result<u32, Fault>>,
    ) -> Result<Option<Arc<AtomicBool>>, Fault> {
        let before = self.number();
        if self.doubt.load(Ordering::Acquire) {
            self.set(present.await?);
            if self.number() == before {
                return Ok(None);
            }
        }
        Ok(Some(self.doubt.clone()))
    }

    /// The version has been read.
    pub fn set(&self, version: u32) {
        debug_assert!(VERSIONS.contains(&version), "it was not judged");
        self.present.store(version, Ordering::Release);
        self.doubt.store(false, Ordering::Release);
    }
}

/// Returns which of the versions that are `known` was found, or `None` if there are no tables.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) if it is another one.
pub fn known_version(found: Option<String>, known: &[u32], prefix: &str) -> Result<Option<u32>, Fault> {
    let Some(found) = found else { return Ok(None) };
    if let Some(version) = known.iter().find(|version| version.to_string() == found) {
        return Ok(Some(*version));
    }
    let all: Vec<String> = known.iter().map(u32::to_string).collect();
    Err(Fault::Failed {
        kind: ErrorKind::Unsupported,
        message: format!(
            "the tables {prefix}… are of version {found}, and this program knows version {}",
            all.join(" and ")
        ),
        hint: "use the same version of tenure everywhere, or another `?prefix=`",
    })
}

/// Returns the version of tables that were there before.
///
/// # Errors
/// As those of [`known_version`]; [`Unsupported`](ErrorKind::Unsupported) if they are not there any more.
pub fn present_version(found: Option<String>, prefix: &str) -> Result<u32, Fault> {
    known_version(found, &VERSIONS, prefix)?.ok_or_else(|| Fault::Failed {
        kind: ErrorKind::Unsupported,
        message: format!("the tables {prefix}… are not there any more"),
        hint: "make them: `tenure doctor --migrate`",
    })
}
