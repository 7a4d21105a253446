//! Which version the tables are of. Another client may make the next one of them while this one is at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tenure_sql::{Tables, VERSION, VERSION_WITH_HOLDS};

use crate::plain::PlainTexts;
use crate::statement::Statement;

/// The names of the tables, and statements for them.
pub(crate) struct Version {
    pub(crate) tables: Tables,
    pub(crate) plain_texts: PlainTexts,
}

/// Both versions that this program knows, and which it is.
pub(crate) struct Versions {
    old: Version,
    new: Version,
    present: AtomicU32,
    /// Set when a table was not there: before the next statement the version is read.
    pub(crate) doubt: Arc<AtomicBool>,
}

impl Versions {
    pub(crate) fn new(place: &str, deletes: bool, present: u32) -> Versions {
        let version = |tables: Tables| {
            let tables = Tables { deletes, ..tables };
            Version { plain_texts: PlainTexts::new(place, &tables), tables }
        };
        Versions {
            old: version(Tables::new(place)),
            new: version(Tables::with_holds(place)),
            present: AtomicU32::new(present),
            doubt: Arc::default(),
        }
    }

    /// Returns the statements for tables of version 2 of which there are functions.
    pub(crate) fn functions(&self) -> [&Statement; 4] {
        self.new.plain_texts.all()
    }

    /// Whether that version may be another one by now.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.load(Ordering::Acquire)
    }

    /// Returns the present version.
    pub(crate) fn present(&self) -> &Version {
        if self.number() == VERSION { &self.old } else { &self.new }
    }

    pub(crate) fn number(&self) -> u32 {
        self.present.load(Ordering::Acquire)
    }

    /// The version has been read.
    pub(crate) fn set(&self, version: u32) {
        debug_assert!([VERSION, VERSION_WITH_HOLDS].contains(&version));
        self.present.store(version, Ordering::Release);
        self.doubt.store(false, Ordering::Release);
    }
}
