//! Rules about what depends on what.

use super::Finding;
use crate::manifest::Manifest;
use crate::tree::Tree;

const CORE: &str = "crates/tenure-core/Cargo.toml";
const FACADE: &str = "crates/tenure/";
/// Where a feature breaks the product on purpose.
const MUTANTS: &str = "crates/tenure-core/src/mutants.rs";
const TRACES: &str = "crates/tenure-cli/src/traces.rs";
const TLS: &str = "crates/tenure-serve/src/tls.rs";
const TRACES_TESTS: &str = "crates/tenure-cli/tests/it/traces.rs";

/// Names and starts of names of packages that speak to a store.
const STORE_CLIENTS: [&str; 16] = [
    "heed",
    "lmdb",
    "redis",
    "fred",
    "rustis",
    "zookeeper",
    "etcd",
    "tonic",
    "sqlx",
    "tokio-postgres",
    "deadpool",
    "mysql",
    "rusqlite",
    "redb",
    "fjall",
    "sled",
];

/// Finds dependencies of the core on engines and on clients of stores.
pub(crate) fn core_is_pure(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(CORE) else {
        return vec![Finding::of("pure-core", CORE, "the file does not exist")];
    };
    let is_impure = |name: &str| {
        name == "tenure"
            || name.starts_with("tenure-")
            || STORE_CLIENTS.iter().any(|client| name.starts_with(client))
    };
    let manifest = Manifest::parse(text);
    let names = manifest.dependencies().into_iter().filter(|name| is_impure(name));
    names.map(|name| Finding::of("pure-core", CORE, format!("the core must not depend on {name}"))).collect()
}

/// Finds code outside of the facade that depends on a feature, but on `testing`, what no release may have, and on `mutants`, the
/// server's `tls` and the command's `otlp` in one file each.
pub(crate) fn features_stay_in_the_facade(tree: &Tree) -> Vec<Finding> {
    let conditions = ["cfg(", "cfg_attr(", "cfg!("];
    let mut findings = Vec::new();
    for (path, text) in tree.with_suffix(".rs").filter(|(path, _)| !path.starts_with(FACADE)) {
        for (number, line) in text.lines().enumerate() {
            let squeezed: String = line.chars().filter(|c| !c.is_whitespace()).collect();
            let squeezed = squeezed.replace(concat!("feature=", "\"testing\""), "");
            let squeezed = match path {
                TRACES | TRACES_TESTS => squeezed.replace(concat!("feature=", "\"otlp\""), ""),
                TLS => squeezed.replace(concat!("feature=", "\"tls\""), ""),
                MUTANTS => squeezed.replace(concat!("feature=", "\"mutants\""), ""),
                _ => squeezed,
            };
            let asks = squeezed.contains(concat!("feature=", '"'));
            if asks && conditions.iter().any(|condition| squeezed.contains(condition)) {
                let text = "only the facade has features";
                findings.push(Finding::at("features", path, number + 1, text));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_client_or_an_engine_in_the_core_is_found() {
        let bad = "[dependencies]\nslab = \"1\"\nredis.workspace = true\n[dev-dependencies]\ntenure-local = \"1\"\n";
        assert_eq!(core_is_pure(&Tree::of(&[(CORE, bad)])).len(), 2);
        assert_eq!(core_is_pure(&Tree::of(&[(CORE, "[dependencies]\nslab = \"1\"\n")])), []);
        assert_eq!(core_is_pure(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn a_feature_outside_the_facade_is_found() {
        let condition = concat!("#[cfg(all(test, feature", " = \"redis\"))]");
        let tree =
            Tree::of(&[("crates/tenure-core/src/a.rs", condition), ("crates/tenure/src/lib.rs", condition)]);
        let found = features_stay_in_the_facade(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/tenure-core/src/a.rs");
        let testing = concat!("#[cfg(any(test, feature", " = \"testing\"))]");
        assert_eq!(features_stay_in_the_facade(&Tree::of(&[("crates/tenure-core/src/a.rs", testing)])), []);
    }
}
