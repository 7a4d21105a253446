//! `cargo xtask bench anchors`: tenure beside Redisson, Curator, ShedLock, redsync, rslock, redis-py and node-redlock, on the same stores in one run.
//! `cargo xtask test --anchors` sees that each of them works, without a figure.
//!
//! `crates/tenure-bench/anchors` has a program for each language and the one that starts them; here they are built.

use std::path::{Path, PathBuf};

use crate::args::Args;
use crate::run::{Outcome, Run, WORKSPACE};
use crate::setup;

/// Where they are.
const SOURCES: &str = "crates/tenure-bench/anchors";
/// The client for Java, which is one of the sides.
const JAVA: &str = "java/tenure/src/main/java/dev/tenure";

/// Compares, when `bench` has compiled what is ours.
pub(crate) fn bench(run: &mut Run, args: Args) -> Outcome<()> {
    compare(run, "dist", &args.rest())
}

/// Sees that every side works.
pub(crate) fn tests(run: &mut Run) -> Outcome<()> {
    compare(run, "debug", &["--check".to_owned()])
}

/// Has what is ours from a folder of the target: as it is handed out, or as the tests are.
fn compare(run: &mut Run, folder_of_ours: &str, arguments: &[String]) -> Outcome<()> {
    setup::need(run, &setup::FOR_ANCHORS)?;
    let target = run.target()?;
    let (folder, ours) = (target.join("anchors"), target.join(folder_of_ours));
    let classes = folder.join("classes");
    std::fs::create_dir_all(&classes)
        .map_err(|error| format!("cannot make {}: {error}", classes.display()))?;
    // The soak and the stores are programs of the tests, and nobody measures them.
    let tests = format!(
        "build --profile test {WORKSPACE} --bin tenure --bin anchors --bin tenure-chaos --example stores"
    );
    let mut build = run.cargo(&tests);
    if !run.command("programs of the tests", &mut build) {
        return Ok(());
    }
    let (Some(classes), Some(redsync)) = (java(run, &folder)?, go(run, &folder)) else { return Ok(()) };
    let foreign = setup::foreign();
    let mut compare = run.program("python3");
    compare.arg(format!("{SOURCES}/compare.py")).args(arguments);
    compare.env("TENURE_COMMAND", ours.join("tenure"));
    compare.env("TENURE_ANCHORS_RUST", ours.join("anchors"));
    compare.env("TENURE_ANCHORS_JAVA", classes).env("TENURE_ANCHORS_GO", redsync);
    compare.env("TENURE_TEST_STORES", target.join("debug/examples/stores"));
    compare.env("TENURE_CHAOS", target.join("debug/tenure-chaos"));
    compare.env("PYTHONPATH", foreign.join("python")).env("NODE_PATH", foreign.join("node_modules"));
    compare.env("PYTHONDONTWRITEBYTECODE", "1");
    run.command("anchors", &mut compare);
    Ok(())
}

/// Fetches the libraries, and compiles what takes their locks. Returns the path of all classes.
fn java(run: &mut Run, folder: &Path) -> Outcome<Option<String>> {
    let libraries = folder.join("libraries");
    let mut maven = run.program("mvn");
    maven.args(["--quiet", "--batch-mode", "--file"]).arg(format!("{SOURCES}/java/pom.xml"));
    maven.arg("org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies");
    if !run.command("libraries", maven.arg(format!("-DoutputDirectory={}", libraries.display()))) {
        return Ok(None);
    }
    let classes = folder.join("classes");
    let path = format!("{}:{}/*", classes.display(), libraries.display());
    let mut javac = run.program("javac");
    javac.args(["--release", "17", "-Xlint:all,-processing", "-Werror", "-cp", &path, "-d"]).arg(&classes);
    for sources in [&format!("{SOURCES}/java"), JAVA] {
        javac.args(sources_of(&run.root().join(sources))?);
    }
    Ok(run.command("sides in Java", &mut javac).then_some(path))
}

fn sources_of(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let files =
        std::fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let paths = files.filter_map(Result::ok).map(|file| file.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|ending| ending == "java")).collect())
}

fn go(run: &mut Run, folder: &Path) -> Option<PathBuf> {
    let program = folder.join("redsync");
    let mut go = run.program("go");
    go.args(["build", "-o"]).arg(&program).arg(".").current_dir(run.root().join(SOURCES).join("go"));
    run.command("a side in Go", &mut go).then_some(program)
}
