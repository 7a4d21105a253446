//! `cargo xtask test`: the tests of the workspace, with nextest, and the doc tests.

use std::process::Command;

use crate::anchors;
use crate::args::Args;
use crate::clients;
use crate::engines::{self, ENGINES, Engine};
use crate::java;
use crate::python::{self, Wheel};
use crate::report::Report;
use crate::run::{Outcome, Run, Running, WORKSPACE};
use crate::setup::{self, Tool};
use crate::tree::Tree;
use crate::{manifest, manifest::Manifest, mutants};

/// Which tests to run.
enum Scope {
    /// Everything that needs no server.
    Fast,
    /// Every store; of a variant, what routing can break.
    All,
    /// What is of no engine and needs programs of others.
    Programs,
    /// All there is.
    Everything,
    /// Only the tests of these engines.
    Engines(Vec<&'static Engine>),
}

impl Scope {
    /// What its tests need besides a compiler and nextest.
    fn tools(&self) -> Vec<&'static Tool> {
        match self {
            Scope::Fast => Vec::new(),
            Scope::All => [&setup::of_engines()[..], &[&setup::CURL]].concat(),
            Scope::Programs => [&Scope::All.tools()[..], &setup::FOR_PROGRAMS].concat(),
            // Clients in other languages beside instances that are killed.
            Scope::Everything => {
                [&Scope::Programs.tools()[..], &[&setup::JDK, &setup::NODE, &setup::PHP]].concat()
            }
            Scope::Engines(engines) => engines.iter().flat_map(|engine| engine.tools).copied().collect(),
        }
    }
}

/// Tests that are not run by nextest; whether those that take minutes, too.
type Tests = fn(&mut Run, bool) -> Outcome<()>;

/// Runs the tests that the command line names.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    let engines = args.value("--engine")?;
    let (all, everything) = (args.flag("--all"), args.flag("--everything"));
    let (of_python, is_long) = (args.flag("--python"), args.flag("--long"));
    let alone: [(&str, Tests); 3] = [
        ("--java", java::tests),
        ("--clients", |run, _| clients::tests(run)),
        ("--anchors", |run, _| anchors::tests(run)),
    ];
    let named: Vec<_> = alone.into_iter().filter(|(flag, _)| args.flag(flag)).collect();
    args.finish()?;
    match (&named[..], of_python || engines.is_some() || all || everything) {
        ([("--java", tests)], false) => return tests(run, is_long),
        ([(_, tests)], false) if !is_long => return tests(run, false),
        ([], _) => {}
        ([(flag, _), ..], _) => return Err(format!("{flag} stands alone")),
    }
    match (of_python, engines.is_some() || all || everything) {
        (true, false) => {
            return python::tests(run, if is_long { Wheel::HandedOut } else { Wheel::Test });
        }
        (false, _) if !is_long => {}
        _ => return Err("--python stands alone, and --long goes with it or with --java".to_owned()),
    }
    let scope = match (engines, all, everything) {
        (Some(list), false, false) => Scope::Engines(engines::named(&list)?),
        (None, true, false) => Scope::All,
        (None, false, true) => Scope::Everything,
        (None, false, false) => Scope::Fast,
        _ => return Err("--engine, --all and --everything exclude each other".to_owned()),
    };
    if matches!(scope, Scope::All) {
        return everywhere(run);
    }
    let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    suite(run, &scope, if is_ci { "ci" } else { "default" })?;
    // They need a build of their own.
    if matches!(scope, Scope::Everything) {
        mutants::start(run, Args::new(std::iter::empty()))
    } else {
        Ok(())
    }
}

/// Runs the tests of a scope with a profile of nextest; the doc tests too, unless engines were named.
fn suite(run: &mut Run, scope: &Scope, profile: &str) -> Outcome<()> {
    prepare(run, scope)?;
    let mut tests = nextest(run, scope, profile)?;
    let step = if matches!(scope, Scope::Programs) { "tests with programs of others" } else { "tests" };
    let running = Running::start(step, &mut tests);
    if !matches!(scope, Scope::Engines(_) | Scope::Programs) {
        // Beside the tests, which leave a processor now and then, and behind them.
        run.command("doc tests", &mut run.nice_cargo(&format!("test --quiet --doc {WORKSPACE}")));
    }
    run.wait(running);
    if matches!(scope, Scope::Everything) {
        let mut worlds = run.cargo("test --release --package tenure-core --test it");
        run.command("worlds", worlds.arg("simulation::in_every_world").env("TENURE_SEEDS", WORLDS));
        let mut quorums = run.cargo("test --release --package tenure-redlock --lib");
        run.command(
            "worlds of a quorum",
            quorums.arg("simulation::in_every_world").env("TENURE_QUORUMS", QUORUMS),
        );
    }
    if matches!(scope, Scope::Everything) {
        java::tests(run, true)?;
        clients::tests(run)?;
        anchors::tests(run)?;
        python::tests(run, Wheel::HandedOut)?;
    }
    Ok(())
}

/// Installs what is missing, and compiles the tests meanwhile: one mostly waits for the network, the other for processors.
fn prepare(run: &mut Run, scope: &Scope) -> Outcome<()> {
    setup::need(run, &[&setup::CC])?;
    let tools = [&[&setup::NEXTEST, &setup::TMUX][..], &scope.tools()].concat();
    if !setup::lacks(run, &tools) {
        return Ok(());
    }
    let compiling =
        Running::start("compile the tests", &mut run.cargo(&format!("test --no-run {WORKSPACE}")));
    let installed = setup::need(run, &tools);
    run.wait(compiling);
    installed
}

/// Ways to a store whose rules another suite checks whole: a cluster in place of one server, a pooler before it.
const VARIANTS: &str = "/^conformance::(cluster|ensemble|five|older_tables|pgbouncer|sentinel)::/";
/// Checks of what a way can break: hand-over and wakes, deaths, what is observed, batches over several servers, crowds of one lock and one
/// queue. What a client does by itself when it hears nothing is the same on all ways.
const ROUTED: &str = "/::(claims|death|fifo|observe)::|::(cluster|ensemble|five)::several::|::processes_(that_contend|share_a_queue)_/";

/// What tests tests: that they tell scripts without one of their rules, and alerts that are broken, from those that are whole. It takes dozens of
/// servers, and finds no fault of a script or an alert that the tests themselves do not find, so `cargo xtask check` alone runs it (profile
/// `random`).
const WEAKENED: &str = "test(/::(a_(weaker_operation|weaker_script|script_that_bears_less)|each_breakage_of_the_rules)_is_caught$/)";

/// What needs large programs of others (Prometheus, a browser, nginx, systemd, what knows OpenAPI) and is of no engine: whoever tests the engines
/// need not install them. `cargo xtask check` runs it. `tenure-testkit/src/server.rs` sees to it that what starts a server is left out of the fast loop.
const PROGRAMS: &str = "test(/(^|::)(prometheus|packaging|schemathesis|dashboard)::|_promtool_/)";

/// How much of what is random is tried before a change lands: worlds of the core's simulation and of a quorum's, and how many times the cases
/// of the ordinary suite.
pub(crate) const CHECK: [(&str, &str); 3] =
    [("TENURE_SEEDS", "100000"), ("TENURE_QUORUMS", "240"), ("TENURE_CASES_TIMES", "4")];
/// How many are run when everything is.
const WORLDS: &str = "10000000";
/// The same of the simulation of a quorum.
const QUORUMS: &str = "400000";

/// How many tests run at once on each processor.
const AT_ONCE: usize = 5;

/// The call of nextest for a scope.
fn nextest(run: &Run, scope: &Scope, profile: &str) -> Outcome<Command> {
    let mut command = run.cargo(&format!("nextest run {WORKSPACE} --profile"));
    command.arg(profile);
    // Tests of servers mostly wait.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    command.arg(format!("--test-threads={}", AT_ONCE * processors));
    // Else it starts itself once more for each test, so that Ctrl-Z stops all at once.
    command.env("NEXTEST_DOUBLE_SPAWN", "0");
    if matches!(scope, Scope::Everything) {
        command.envs([("TENURE_EVERYTHING", "1"), ("TENURE_CASES_TIMES", "16")]);
    }
    let packages = packages(&Tree::read(run.root())?);
    if let Some(filter) = filter(scope, &packages) {
        command.args(["--filterset", &filter]);
    }
    Ok(command)
}

/// The filter for nextest; `None` means every test.
fn filter(scope: &Scope, packages: &[String]) -> Option<String> {
    let joined = |engines: Vec<&Engine>| {
        let filters: Vec<String> = engines.iter().map(|engine| engine.filter(packages)).collect();
        (!filters.is_empty()).then(|| filters.join(" | "))
    };
    match scope {
        Scope::Everything => None,
        Scope::Programs => Some(format!("{PROGRAMS} - {WEAKENED}")),
        Scope::All => Some(format!("not ((test({VARIANTS}) - test({ROUTED})) | {WEAKENED} | {PROGRAMS})")),
        Scope::Engines(engines) => joined(engines.clone()).map(|filter| format!("({filter}) - {PROGRAMS}")),
        Scope::Fast => joined(ENGINES.iter().filter(|engine| engine.has_server()).collect())
            .map(|filter| format!("not ({filter} | {PROGRAMS})")),
    }
}

/// The names of the workspace's packages.
fn packages(tree: &Tree) -> Vec<String> {
    let name = |manifest: &Manifest| manifest.value("package", "name").map(str::to_owned);
    manifest::crates(tree).iter().filter_map(|(_, manifest)| name(manifest)).collect()
}

/// Runs the tests of all stores.
pub(crate) fn everywhere(run: &mut Run) -> Outcome<()> {
    run.build_once();
    counted(run, &Scope::All)
}

/// Runs the tests of a scope with profile `ci`, and tells in the end what they came to.
fn counted(run: &mut Run, scope: &Scope) -> Outcome<()> {
    Report::forget(run.root());
    let ran = suite(run, scope, "ci");
    let report = Report::read(run.root()).map(|report| run.conclude(report.to_string()));
    ran.and(report)
}

/// Runs what [`everywhere`] leaves out: programs of others, more of what is random, and the tests in other languages.
pub(crate) fn beyond(run: &mut Run) -> Outcome<()> {
    counted(run, &Scope::Programs)?;
    let mut random = run.cargo(&format!("nextest run {WORKSPACE} --profile random"));
    random.args(["--filterset", "not package(tenure-core)"]);
    run.command("more of what is random", random.envs(CHECK));
    // Most of it is worlds, which pay for an optimized core.
    let mut core = run.cargo("nextest run --cargo-profile thorough --package tenure-core --profile random");
    run.command("more of what is random in the core", core.envs(CHECK));
    java::tests(run, false)?;
    python::tests(run, Wheel::Test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_loop_starts_no_server() {
        let filter = filter(&Scope::Fast, &["tenure-redis".to_owned(), "tenure-local".to_owned()]).unwrap();
        assert!(filter.starts_with("not (package(tenure-redis) | "), "{filter}");
        assert!(!filter.contains("local") && Scope::Fast.tools().is_empty());
        assert!(
            filter.contains("prometheus|packaging|schemathesis"),
            "promtool is none of its tools: {filter}"
        );
        let tools = |list| Scope::Engines(engines::named(list).unwrap()).tools().len();
        assert!(tools("local") == 0 && tools("redis,local") > 0);
        // Some engines share some.
        assert!(Scope::All.tools().len() >= tools("redis") + tools("postgres") + tools("mysql"));
    }

    #[test]
    fn a_variant_of_a_store_is_left_out_where_it_has_no_rule_of_its_own() {
        assert_eq!(filter(&Scope::Everything, &[]), None);
        let filters = [filter(&Scope::All, &[]).unwrap(), filter(&Scope::Programs, &[]).unwrap()];
        assert!(filters.iter().all(|filter| filter.contains(PROGRAMS)));
        assert!(filter(&Scope::All, &[]).unwrap().contains("sentinel"));
        let engines = engines::named("memory,local").unwrap();
        let filter = filter(&Scope::Engines(engines), &["tenure-local".to_owned()]).unwrap();
        assert!(filter.contains("memory") && filter.contains("package(tenure-local)"), "{filter}");
    }
}
