//! The engines and how to select their tests.

use crate::run::Outcome;
use crate::setup::{self, Tool};

/// An engine, as `--engine` names it.
pub(crate) struct Engine {
    /// The one word for it: crate suffix, feature, URL scheme, docs page.
    pub(crate) name: &'static str,
    /// What its tests start, and need besides. The fast loop leaves the tests out that need anything.
    pub(crate) tools: &'static [&'static Tool],
}

/// Every engine of the project. A new one goes here first. A store counts as one as soon as tests start its
/// servers: fences work in PostgreSQL and MySQL already.
pub(crate) const ENGINES: [Engine; 8] = [
    Engine { name: "memory", tools: &[] },
    Engine { name: "local", tools: &[] },
    Engine { name: "redis", tools: &setup::FOR_REDIS },
    Engine { name: "redlock", tools: &setup::FOR_REDIS },
    Engine { name: "postgres", tools: &setup::FOR_POSTGRES },
    Engine { name: "mysql", tools: &setup::FOR_MYSQL },
    Engine { name: "zookeeper", tools: &setup::FOR_ZOOKEEPER },
    Engine { name: "etcd", tools: &setup::FOR_ETCD },
];

/// The engines of a list as a user gives it: `memory,local`.
pub(crate) fn named(list: &str) -> Outcome<Vec<&'static Engine>> {
    list.split(',').map(str::trim).map(find).collect()
}

fn find(name: &str) -> Outcome<&'static Engine> {
    ENGINES.iter().find(|engine| engine.name == name).ok_or_else(|| {
        let known = ENGINES.map(|engine| engine.name).join(", ");
        format!("no engine named {name:?}\n\nhint: the engines are {known}")
    })
}

impl Engine {
    /// Whether its tests start a server.
    pub(crate) fn has_server(&self) -> bool {
        !self.tools.is_empty()
    }

    /// The nextest filter for the tests of this engine: those of its crate, and in other crates those with
    /// the engine's name as a word of a module's or the test's name.
    pub(crate) fn filter(&self, packages: &[String]) -> String {
        let name = self.name;
        let by_name = format!("test(/(^|::|_){name}(::|_|$)/)");
        let package = format!("tenure-{name}");
        // nextest refuses a filter that names a package which does not exist.
        if packages.contains(&package) { format!("package({package}) | {by_name}") } else { by_name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_engine_is_refused_with_the_list_of_known_ones() {
        let error = named("local,oracle").map(|_| ()).unwrap_err();
        assert!(
            error.contains("oracle")
                && error.contains("memory, local, redis, redlock, postgres, mysql, zookeeper, etcd"),
            "{error}"
        );
    }

    #[test]
    fn the_filter_names_only_packages_that_exist() {
        let local = find("local").unwrap();
        assert!(local.filter(&["tenure-local".to_owned()]).starts_with("package(tenure-local) | "));
        assert!(!local.filter(&[]).contains("package("));
    }
}
