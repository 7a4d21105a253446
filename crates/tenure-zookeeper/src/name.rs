//! Names of resources as names of nodes.
//!
//! ZooKeeper's names have no `/`, no control characters, and nothing that UTF-16 needs two units for; `.` and `..` and, below
//! the root, `zookeeper` are its own. All these are written as `%` and two hexadecimal digits for each byte. There is one way
//! to write a name, so that two spellings are never one lock.

use tenure_core::model::claim::Name;

/// What the root has a node of that is not ours.
const RESERVED: &str = "zookeeper";
/// The first character that Java's UTF-16 needs surrogates for, or uses privately.
const STRANGE: char = '\u{e000}';

fn is_plain(character: char) -> bool {
    !character.is_control() && character != '/' && character != '%' && character < STRANGE
}

/// Returns the name of a resource's node.
pub(crate) fn escape(name: &str) -> String {
    let is_reserved = name == RESERVED || name == "." || name == "..";
    let mut escaped = String::with_capacity(name.len());
    for (at, character) in name.char_indices() {
        if is_plain(character) && !(is_reserved && (at == 0 || character == '.')) {
            escaped.push(character);
            continue;
        }
        let mut bytes = [0; 4];
        for byte in character.encode_utf8(&mut bytes).bytes() {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// Returns the resource whose node has this name, or `None` if it is no resource's.
pub(crate) fn unescape(escaped: &str) -> Option<Name> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    let name = Name::new(std::str::from_utf8(&bytes).ok()?).ok()?;
    // Another spelling is another node, and none of ours.
    (escape(name.as_str()) == escaped).then_some(name)
}

/// Whether a path can be a node's: `/a/b`, or empty for the root.
pub(crate) fn is_path(path: &str) -> bool {
    let is_part = |part: &str| {
        let is_allowed = |c: char| !c.is_control() && c < STRANGE;
        !part.is_empty() && part != "." && part != ".." && part.chars().all(is_allowed)
    };
    match path.strip_prefix('/') {
        Some(parts) => parts.split('/').all(is_part),
        None => path.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::model::claim::NAME_BYTES_MAX;

    use super::*;

    #[test]
    fn names_are_written_so_that_people_can_read_them() {
        for (name, node) in [
            ("billing/4711", "billing%2F4711"),
            ("a b: ü€", "a b: ü€"),
            ("100%", "100%25"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            (".hidden", ".hidden"),
            ("zookeeper", "%7Aookeeper"),
            ("zookeepers", "zookeepers"),
            ("🔒", "%F0%9F%94%92"),
            ("\u{e000}\u{fff0}", "%EE%80%80%EF%BF%B0"),
        ] {
            assert_eq!(escape(name), node);
            assert_eq!(unescape(node).as_ref().map(Name::as_str), Some(name));
        }
    }

    #[test]
    fn other_spellings_are_nobodys_names() {
        for node in ["", "zookeeper", ".", "%41", "%2f", "%", "%2", "%zz", "%FF", "%00", "a%0A"] {
            assert_eq!(unescape(node), None, "{node:?}");
        }
    }

    #[test]
    fn paths_are_told_from_what_is_none() {
        for path in ["", "/a", "/a/b", "/zookeeper/a"] {
            assert!(is_path(path), "{path:?}");
        }
        for path in ["/", "a", "/a/", "//a", "/a/./b", "/..", "/a\n", "/🔒"] {
            assert!(!is_path(path), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn each_name_has_one_node_that_zookeeper_allows(name in ".{1,60}") {
            let Ok(name) = Name::new(&name) else { return Ok(()) };
            let node = escape(name.as_str());
            prop_assert!(is_path(&format!("/{node}")) && !node.contains('/'), "{node:?}");
            prop_assert!(node.len() <= 3 * NAME_BYTES_MAX);
            prop_assert_ne!(&node, RESERVED);
            prop_assert_eq!(unescape(&node), Some(name));
        }
    }
}
