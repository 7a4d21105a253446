//! `cargo xtask test --python`: builds the wheel, installs it where there is no Rust, and runs its tests against real stores.
//! `cargo xtask bench python` installs it beside other locks of Python's, and compares.
//!
//! The wheel has the command, too: what lies in `python/tenure.data/scripts` comes to lie on the path of whoever installs it. By default
//! it is put together from what is compiled for the tests; with `--long` maturin builds it as it is handed out, which takes minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::run::{Outcome, Run};
use crate::setup;

/// What builds and checks.
const TOOLS: &str = "maturin==1.16.0 wheel==0.45.1";
/// What the tests and the recipes use.
const FOR_TESTS: &str = "pytest==8.4.2 mypy==1.18.2 gevent==25.9.1 gunicorn==23.0.0 celery==5.5.3 redis==5.2.1 \
     django==4.2.25 fastapi==0.119.0 httpx==0.28.1 apscheduler==3.11.0 pandas==2.2.3";
/// What it is compared with.
const PEERS: &str =
    "redis[hiredis]==5.2.1 python-redis-lock==4.0.1 pottery==3.0.1 filelock==4.2.12 kazoo==2.11.0";
/// What a wheel may weigh as it is handed out, and as the tests are built: unoptimised code is twice as large.
const BYTES_MAX: (&str, &str) = ("15000000", "40000000");

/// What is built, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wheel {
    /// As the tests are.
    Test,
    /// As it is handed out; its tests are also those that take minutes.
    HandedOut,
}

/// Builds, installs and tests.
pub(crate) fn tests(run: &mut Run, what: Wheel) -> Outcome<()> {
    setup::need(run, &setup::FOR_PYTHON)?;
    let target = run.target()?;
    let is_long = what == Wheel::HandedOut;
    let of_wheel = target.join("python");
    let Some(wheel) = build(run, what)? else { return Ok(()) };
    let bare = bare(run, &of_wheel.join("bare"), &wheel);
    let venv = of_wheel.join("venv");
    environment(run, "what the tests use", &venv, FOR_TESTS)?;
    if !install(run, &venv, &wheel) {
        return Ok(());
    }
    let mut pytest = without_rust(run, &venv, "pytest");
    pytest.args(["--quiet", "-p", "no:cacheprovider"]).args(is_long.then_some("--long"));
    pytest.arg(run.root().join("python/tests"));
    pytest.env("TENURE_TEST_STORES", target.join("debug/examples/stores")).env("TENURE_TEST_WHEEL", &wheel);
    pytest.env("TENURE_TEST_WHEEL_MAX", if is_long { BYTES_MAX.0 } else { BYTES_MAX.1 });
    pytest.env("TENURE_TEST_BARE", bare);
    run.command("python tests", &mut pytest);
    let mut mypy = without_rust(run, &venv, "mypy");
    mypy.current_dir(run.root().join("python"));
    mypy.args(["--strict", "--cache-dir"]).arg(of_wheel.join("mypy")).args(["tenure", "examples"]);
    run.command("mypy", &mut mypy);
    Ok(())
}

/// Compares the wheel as it is handed out with other locks of Python's.
pub(crate) fn bench(run: &mut Run, args: Args) -> Outcome<()> {
    setup::need(run, &[&setup::FOR_PYTHON[..], &[&setup::JAVA, &setup::ZOOKEEPER]].concat())?;
    let target = run.target()?;
    let Some(wheel) = build(run, Wheel::HandedOut)? else { return Ok(()) };
    let venv = target.join("python/peers");
    environment(run, "what it is compared with", &venv, PEERS)?;
    if install(run, &venv, &wheel) {
        let mut compare = without_rust(run, &venv, "python");
        compare.arg(run.root().join("python/bench/compare.py")).args(args.rest());
        compare.env("TENURE_TEST_STORES", target.join("debug/examples/stores"));
        run.command("bench", &mut compare);
    }
    Ok(())
}

/// Builds the wheel, and the program that starts stores. None: a step has failed.
fn build(run: &mut Run, what: Wheel) -> Outcome<Option<PathBuf>> {
    let target = run.target()?;
    let of_wheel = target.join("python");
    let (tools, wheels) = (of_wheel.join("tools/bin"), of_wheel.join("wheels"));
    environment(run, "tools", &of_wheel.join("tools"), TOOLS)?;
    // An older one must not be taken for this one.
    fs::remove_dir_all(&wheels).ok();
    made(&wheels)?;
    let is_built = match what {
        Wheel::Test => {
            run.programs_and("the library", "--lib")
                && stage(run, &target.join("debug/tenure"))?
                && pack(run, &target, &tools, &wheels)?
        }
        Wheel::HandedOut => {
            let mut command = run.cargo("build --package tenure-cli --bin tenure --profile wheel");
            let mut maturin = maturin(run, &tools);
            maturin.args(["build", "--quiet", "--strip", "--profile", "wheel", "--out"]).arg(&wheels);
            run.command("the command", &mut command)
                && run.programs()
                && stage(run, &target.join("wheel/tenure"))?
                && run.command("the wheel", &mut maturin)
        }
    };
    if is_built { only_file(&wheels).map(Some) } else { Ok(None) }
}

fn maturin(run: &Run, tools: &Path) -> Command {
    let mut maturin = run.program(&tools.join("maturin").to_string_lossy());
    maturin.current_dir(run.root().join("python"));
    maturin
}

/// Puts a wheel together around the library that is compiled for the tests. maturin would compile it, and that package by itself: cargo
/// takes other features then of what it depends on, and compiles nearly everything anew.
fn pack(run: &mut Run, target: &Path, tools: &Path, wheels: &Path) -> Outcome<bool> {
    let tree = target.join("python/tree");
    fs::remove_dir_all(&tree).ok();
    made(&tree)?;
    let mut describe = maturin(run, tools);
    describe.args(["pep517", "write-dist-info", "--metadata-directory"]).arg(&tree);
    describe.arg("--interpreter").arg(tools.join("python"));
    if !run.command("its description", &mut describe) {
        return Ok(false);
    }
    let described = only_file(&tree)?.to_string_lossy().replace(".dist-info", ".data");
    let sources = run.root().join("python");
    let mut copy = run.program("cp");
    copy.arg("-r").arg(sources.join("tenure.data")).arg(described);
    let mut library = run.program("strip");
    library.arg("-o").arg(tree.join("tenure/_tenure.abi3.so")).arg(target.join("debug/lib_tenure.so"));
    let mut pack = run.program(&tools.join("wheel").to_string_lossy());
    pack.arg("pack").arg(&tree).arg("--dest-dir").arg(wheels);
    let mut python = run.program("cp");
    python.arg("-r").arg(sources.join("tenure")).arg(&tree);
    Ok(run.command("its command", &mut copy)
        && run.command("its sources", &mut python)
        && run.command("its library", &mut library)
        && run.command("the wheel", &mut pack))
}

/// Installs the wheel beside what is there. Whether it could be.
fn install(run: &mut Run, venv: &Path, wheel: &Path) -> bool {
    let mut install = without_rust(run, venv, "pip");
    install.args(["install", "--quiet", "--no-deps", "--force-reinstall"]);
    run.command("install", install.arg(wheel))
}

/// Puts the command where maturin finds it, without what debuggers read.
fn stage(run: &mut Run, command: &Path) -> Outcome<bool> {
    let scripts = run.root().join("python/tenure.data/scripts");
    made(&scripts)?;
    let mut strip = run.program("strip");
    Ok(run.command("strip", strip.arg("-o").arg(scripts.join("tenure")).arg(command)))
}

fn made(folder: &Path) -> Outcome<()> {
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))
}

/// Makes a virtual environment with these packages, unless it is there with the same.
fn environment(run: &mut Run, what: &str, path: &Path, packages: &str) -> Outcome<()> {
    let note = path.join("installed");
    if fs::read_to_string(&note).is_ok_and(|installed| installed == packages) {
        return Ok(());
    }
    let mut venv = run.program("python3");
    run.command("venv", venv.args(["-m", "venv", "--clear"]).arg(path));
    let mut pip = run.program(&path.join("bin/pip").to_string_lossy());
    if run.command(what, pip.args(["install", "--quiet"]).args(packages.split_whitespace())) {
        fs::write(&note, packages).map_err(|error| format!("cannot write {}: {error}", note.display()))?;
    }
    Ok(())
}

/// Installs the wheel alone into a new environment, as users do, and uses it. Returns its Python, for the README's lines.
fn bare(run: &mut Run, path: &Path, wheel: &Path) -> PathBuf {
    let mut venv = run.program("python3");
    run.command("bare venv", venv.args(["-m", "venv", "--clear"]).arg(path));
    let mut pip = without_rust(run, path, "pip");
    run.command("bare install", pip.args(["install", "--quiet", "--no-index"]).arg(wheel));
    let mut python = without_rust(run, path, "python");
    let code = "import tenure; tenure.connect('memory:').mutex('a').acquire().release()";
    run.command("bare library", python.args(["-c", code]));
    run.command("bare command", without_rust(run, path, "tenure").arg("--version"));
    path.join("bin/python")
}

/// A program of an environment, started where cargo and rustc are not found.
fn without_rust(run: &Run, venv: &Path, name: &str) -> Command {
    let bin = venv.join("bin");
    let mut command = run.program(&bin.join(name).to_string_lossy());
    let path = format!("{}:/usr/sbin:/sbin:/usr/bin:/bin", bin.display());
    // Not where the sources lie: Python would find them in place of what is installed.
    command.current_dir(venv).env("PATH", path);
    command.env_remove("TENURE_ENGINE").env_remove("PYTHONPATH");
    command
}

/// The only file of a folder.
fn only_file(folder: &Path) -> Outcome<PathBuf> {
    let files = fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = files.filter_map(Result::ok).map(|file| file.path()).collect();
    match (paths.pop(), paths.is_empty()) {
        (Some(path), true) => Ok(path),
        _ => Err(format!("not one wheel in {}", folder.display())),
    }
}
