//! `cargo xtask setup`: what the other chores need on the machine.
//!
//! Each tool is probed first, so that a second call costs a few milliseconds. Cargo tools go where
//! `cargo install` puts them. typos comes as a wheel in a folder of its own below the user's cache, since
//! it takes minutes to compile and some systems refuse to let pip write anywhere else.
//!
//! The versions are those that were seen to work; a tool that is already there is used as it is.

use std::path::PathBuf;

use crate::args::Args;
use crate::engines::ENGINES;
use crate::run::{self, Outcome, Run};

/// A program that chores need.
pub(crate) struct Tool {
    name: &'static str,
    /// The command that prints its version.
    probe: &'static str,
    source: Source,
}

/// Where a tool comes from.
enum Source {
    /// `cargo install`: package and version.
    Cargo(&'static str, &'static str),
    /// The same, without what the package has by default, which takes a third of the time to compile.
    CargoBare(&'static str, &'static str),
    /// A wheel, else `cargo install`: package of the wheel, package of cargo, version.
    Wheel(&'static str, &'static str, &'static str),
    /// Packages of Python, below [`foreign`].
    Python(&'static [&'static str]),
    /// Packages of Node, below [`foreign`].
    Node(&'static [&'static str]),
    /// Another Rust toolchain.
    Toolchain(&'static str),
    /// A component of the Rust toolchain.
    Rustup(&'static str),
    /// The standard library for another system.
    Target(&'static str),
    /// Packages of Debian.
    Apt(&'static str),
}

/// Formats the code.
pub(crate) const RUSTFMT: Tool =
    Tool { name: "rustfmt", probe: "cargo fmt --version", source: Source::Rustup("rustfmt") };
/// Lints the code.
pub(crate) const CLIPPY: Tool =
    Tool { name: "clippy", probe: "cargo clippy --version", source: Source::Rustup("clippy") };
/// Compiles the C of LMDB.
pub(crate) const CC: Tool = Tool { name: "cc", probe: "cc --version", source: Source::Apt("gcc") };
/// What benches compare `tenure run` with.
pub(crate) const FLOCK: Tool =
    Tool { name: "flock", probe: "flock --version", source: Source::Apt("util-linux") };
/// The server of an engine. It is its own Sentinel, too. Tests start servers of their own, and never use the one
/// that the package may start.
pub(crate) const REDIS: Tool =
    Tool { name: "redis-server", probe: "redis-server --version", source: Source::Apt("redis-server") };
/// A database. The probe finds what the tests start, wherever the search path leads.
pub(crate) const POSTGRES: Tool = Tool {
    name: "postgresql",
    probe: "find /usr/lib/postgresql -name initdb",
    source: Source::Apt("postgresql"),
};
/// What many have before it.
pub(crate) const PGBOUNCER: Tool =
    Tool { name: "pgbouncer", probe: "/usr/sbin/pgbouncer --version", source: Source::Apt("pgbouncer") };
/// A database. Debian keeps it from the search path of those who are not root.
pub(crate) const MARIADB: Tool =
    Tool { name: "mariadb", probe: "/usr/sbin/mariadbd --version", source: Source::Apt("mariadb-server") };
/// A store. Tests start servers of their own, and never use the one that the package may start.
pub(crate) const ETCD: Tool =
    Tool { name: "etcd", probe: "etcd --version", source: Source::Apt("etcd-server") };
/// Prepares and asks that store.
pub(crate) const ETCDCTL: Tool =
    Tool { name: "etcdctl", probe: "etcdctl version", source: Source::Apt("etcd-client") };
/// A store. The package brings Java, and tests start servers of their own.
pub(crate) const ZOOKEEPER: Tool =
    Tool { name: "zookeeper", probe: "find /usr/share/java/zookeeper.jar", source: Source::Apt("zookeeper") };
/// Runs that store.
pub(crate) const JAVA: Tool =
    Tool { name: "java", probe: "java --version", source: Source::Apt("default-jre-headless") };
/// Compiles and runs the client for Java.
pub(crate) const JDK: Tool =
    Tool { name: "jdk", probe: "javac --version", source: Source::Apt("default-jdk-headless") };
/// Builds it.
pub(crate) const MAVEN: Tool = Tool { name: "maven", probe: "mvn --version", source: Source::Apt("maven") };
/// Runs the client for Node, and the clients of others. Its package brings npm, too, on some systems.
pub(crate) const NODE: Tool = Tool { name: "node", probe: "node --version", source: Source::Apt("nodejs") };
/// Runs the client for PHP, which needs curl.
pub(crate) const PHP: Tool =
    Tool { name: "php", probe: "php --ri curl", source: Source::Apt("php8.2-cli php8.2-curl") };
/// Compiles what `bench anchors` compares with. It fetches a newer one by itself, from 1.21 on.
pub(crate) const GO: Tool = Tool { name: "go", probe: "go version", source: Source::Apt("golang-go") };
/// Makes the certificates of servers under test.
pub(crate) const OPENSSL: Tool =
    Tool { name: "openssl", probe: "openssl version", source: Source::Apt("openssl") };
/// Reads the metrics and judges the alerts. The package may start a server: tests start their own.
pub(crate) const PROMETHEUS: Tool =
    Tool { name: "prometheus", probe: "promtool --version", source: Source::Apt("prometheus") };
/// A terminal for what is drawn on one.
pub(crate) const TMUX: Tool = Tool { name: "tmux", probe: "tmux -V", source: Source::Apt("tmux") };
/// Runs the tests. The first version that knows all that `.config/nextest.toml` says: 0.9.143 takes 250 s of a processor to compile, this one 160.
pub(crate) const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    probe: "cargo nextest --version",
    source: Source::CargoBare("cargo-nextest", "0.9.92"),
};
/// Has libFuzzer look for bytes that a reader cannot bear. Only `fuzz` needs it, and the toolchain below.
pub(crate) const FUZZ: Tool =
    Tool { name: "cargo-fuzz", probe: "cargo fuzz --version", source: Source::Cargo("cargo-fuzz", "0.13.1") };
/// Instruments what is fuzzed.
pub(crate) const NIGHTLY: Tool = Tool {
    name: "nightly",
    probe: "rustup run nightly cargo --version",
    source: Source::Toolchain("nightly"),
};
/// Finds spelling mistakes.
pub(crate) const TYPOS: Tool =
    Tool { name: "typos", probe: "typos --version", source: Source::Wheel("typos", "typos-cli", "1.52.0") };
/// Checks licences, sources and bans of dependencies.
pub(crate) const DENY: Tool =
    Tool { name: "cargo-deny", probe: "cargo deny --version", source: Source::Cargo("cargo-deny", "0.20.2") };
/// Measures coverage. Only `cover` needs it.
pub(crate) const TARPAULIN: Tool = Tool {
    name: "cargo-tarpaulin",
    probe: "cargo tarpaulin --version",
    source: Source::Cargo("cargo-tarpaulin", "0.37.5"),
};

/// Stands before two instances of `tenure serve`. Debian keeps it from the search path of those who are not root, and the package starts it.
pub(crate) const NGINX: Tool =
    Tool { name: "nginx", probe: "/usr/sbin/nginx -v", source: Source::Apt("nginx-light") };
/// Reads units.
pub(crate) const SYSTEMD: Tool =
    Tool { name: "systemd", probe: "systemd-analyze --version", source: Source::Apt("systemd") };
/// Knows what Kubernetes knows, with its schemas.
pub(crate) const KUBERNETES: Tool =
    Tool { name: "kubernetes-validate", probe: "", source: Source::Python(&["kubernetes-validate==1.37.0"]) };
/// Makes packages for Debian. Only `package` needs it, and what is below.
pub(crate) const CARGO_DEB: Tool =
    Tool { name: "cargo-deb", probe: "cargo deb --version", source: Source::Cargo("cargo-deb", "3.8.0") };
/// Judges them.
const LINTIAN: Tool = Tool { name: "lintian", probe: "lintian --version", source: Source::Apt("lintian") };
/// Compiles C for programs that need no C library.
pub(crate) const MUSL: Tool =
    Tool { name: "musl-gcc", probe: "musl-gcc --version", source: Source::Apt("musl-tools") };
/// What such programs are linked with.
pub(crate) const STATIC_STD: Tool = Tool {
    name: "musl",
    probe: "rustup run stable rustc --version --print target-libdir --target x86_64-unknown-linux-musl",
    source: Source::Target("x86_64-unknown-linux-musl"),
};
/// Makes images without a daemon.
pub(crate) const BUILDAH: Tool =
    Tool { name: "buildah", probe: "buildah --version", source: Source::Apt("buildah") };
/// Sets up namespaces.
const UNSHARE: Tool = Tool { name: "unshare", probe: "unshare --version", source: Source::Apt("util-linux") };
/// The same for networks.
const IPROUTE: Tool = Tool { name: "ip", probe: "ip -V", source: Source::Apt("iproute2") };
/// A client of HTTP.
pub(crate) const CURL: Tool = Tool { name: "curl", probe: "curl --version", source: Source::Apt("curl") };

/// Runs the clients of others that contend with ours.
pub(crate) const PYTHON: Tool =
    Tool { name: "python3", probe: "python3 -m pip --version", source: Source::Apt("python3-pip") };
/// The same.
pub(crate) const NPM: Tool = Tool { name: "npm", probe: "npm --version", source: Source::Apt("npm") };
/// Virtual environments, in which the wheel is built and tested.
pub(crate) const VENV: Tool = Tool {
    name: "python3-venv",
    probe: "python3 -m ensurepip --version",
    source: Source::Apt("python3-venv"),
};
/// Takes what debuggers read out of the command.
pub(crate) const STRIP: Tool =
    Tool { name: "strip", probe: "strip --version", source: Source::Apt("binutils") };
/// A client of the classic lock protocol.
pub(crate) const REDIS_PY: Tool =
    Tool { name: "redis-py", probe: "", source: Source::Python(&["redis==8.1.0"]) };
/// A client with ZooKeeper's classic recipes.
pub(crate) const KAZOO: Tool = Tool { name: "kazoo", probe: "", source: Source::Python(&["kazoo==2.11.0"]) };
/// Another client of the classic lock protocol.
pub(crate) const REDLOCK: Tool =
    Tool { name: "node-redlock", probe: "", source: Source::Node(&["redlock@4.2.0", "ioredis@5.8.2"]) };
/// What knows OpenAPI, and asks a server by it.
pub(crate) const SCHEMATHESIS: Tool = Tool {
    name: "schemathesis",
    probe: "",
    source: Source::Python(&["schemathesis==4.32.5", "openapi-spec-validator==0.9.0"]),
};
/// A browser for the tests of the dashboard.
pub(crate) const CHROMIUM: Tool =
    Tool { name: "chromium", probe: "chromium --version", source: Source::Apt("chromium") };
/// What drives it.
pub(crate) const CHROMEDRIVER: Tool =
    Tool { name: "chromedriver", probe: "chromedriver --version", source: Source::Apt("chromium-driver") };
/// Looks in it for what keeps people from using a page.
pub(crate) const AXE: Tool = Tool { name: "axe-core", probe: "", source: Source::Node(&["axe-core@4.14.1"]) };
/// Another queue on Redis, which `bench` measures ours beside.
pub(crate) const BULLMQ: Tool =
    Tool { name: "bullmq", probe: "", source: Source::Node(&["bullmq@5.61.0", "ioredis@5.8.2"]) };

/// What alerts are judged with, the dashboard shown in, `packaging/` checked with and the interface of `tenure serve`. A Redis is what they are about.
pub(crate) const FOR_PROGRAMS: [&Tool; 8] =
    [&PROMETHEUS, &CHROMIUM, &CHROMEDRIVER, &AXE, &NGINX, &SYSTEMD, &KUBERNETES, &SCHEMATHESIS];
/// What the check of a package needs.
pub(crate) const FOR_DEB: [&Tool; 6] = [&LINTIAN, &SYSTEMD, &UNSHARE, &IPROUTE, &CURL, &OPENSSL];
/// What the check of an image needs.
pub(crate) const FOR_IMAGE: [&Tool; 5] = [&REDIS, &UNSHARE, &IPROUTE, &CURL, &OPENSSL];

/// What no engine needs, but `ci` and `bench`.
const CHORES: [&Tool; 8] = [&CC, &FLOCK, &TMUX, &RUSTFMT, &CLIPPY, &NEXTEST, &TYPOS, &DENY];

/// What benches compare ours with, beside the clients that tests need.
const FOR_BENCHES: [&Tool; 1] = [&BULLMQ];

/// What the tests with Redis need.
pub(crate) const FOR_REDIS: [&Tool; 6] = [&REDIS, &OPENSSL, &PYTHON, &NPM, &REDIS_PY, &REDLOCK];
/// What the wheel is built and tested with.
pub(crate) const FOR_PYTHON: [&Tool; 7] = [&CC, &STRIP, &PYTHON, &VENV, &REDIS, &POSTGRES, &ETCD];
/// What the client for Java is built and tested with.
pub(crate) const FOR_JAVA: [&Tool; 4] = [&CC, &JDK, &MAVEN, &REDIS];
/// What the thin clients of one file are tested with.
pub(crate) const FOR_CLIENTS: [&Tool; 4] = [&CC, &REDIS, &NODE, &PHP];
/// What the comparison with the locks that people use needs.
pub(crate) const FOR_ANCHORS: [&Tool; 10] =
    [&CC, &JDK, &MAVEN, &GO, &PYTHON, &REDIS_PY, &NPM, &REDLOCK, &REDIS, &ZOOKEEPER];
/// What the tests with PostgreSQL need.
pub(crate) const FOR_POSTGRES: [&Tool; 2] = [&POSTGRES, &PGBOUNCER];
/// What the tests with MySQL need: MariaDB, since Debian has no MySQL.
pub(crate) const FOR_MYSQL: [&Tool; 1] = [&MARIADB];
/// What the tests with etcd need.
pub(crate) const FOR_ETCD: [&Tool; 3] = [&ETCD, &ETCDCTL, &OPENSSL];
/// What the tests with ZooKeeper need.
pub(crate) const FOR_ZOOKEEPER: [&Tool; 5] = [&JAVA, &ZOOKEEPER, &OPENSSL, &PYTHON, &KAZOO];

/// What the tests of all engines need.
pub(crate) fn of_engines() -> Vec<&'static Tool> {
    let mut tools: Vec<&'static Tool> = Vec::new();
    for tool in ENGINES.iter().flat_map(|engine| engine.tools) {
        if !tools.iter().any(|known| known.name == tool.name) {
            tools.push(tool);
        }
    }
    tools
}

/// Installs what is missing and prints versions.
pub(crate) fn start(run: &mut Run, args: Args) -> Outcome<()> {
    args.finish()?;
    let tools =
        [&CHORES[..], &of_engines(), &FOR_PROGRAMS, &[&CURL, &JDK, &MAVEN, &NODE, &PHP, &GO], &FOR_BENCHES]
            .concat();
    need(run, &tools)?;
    for tool in tools {
        println!("{:<14} {}", tool.name, tool.version(run).unwrap_or_default());
    }
    let rustc = run::output(run.program("rustc").arg("--version"))?;
    println!("{:<14} {}", "rustc", rustc.trim());
    Ok(())
}

/// Installs those of the tools that are missing; the step says what it runs before it runs it.
pub(crate) fn need(run: &mut Run, tools: &[&Tool]) -> Outcome<()> {
    for tool in tools {
        // Not asked before: one may have come with another.
        if tool.version(run).is_some() {
            continue;
        }
        tool.install(run);
        if tool.version(run).is_none() {
            return Err(format!("{} is missing and could not be installed", tool.name));
        }
    }
    Ok(())
}

/// Whether any of the tools is missing.
pub(crate) fn lacks(run: &Run, tools: &[&Tool]) -> bool {
    tools.iter().any(|tool| tool.version(run).is_none())
}

/// The path of typos: on the search path, or where `setup` put it.
pub(crate) fn typos(run: &Run) -> PathBuf {
    let on_path = run::output(run.program("typos").arg("--version")).is_ok();
    let installed = wheels(&TYPOS).join("bin/typos");
    if !on_path && installed.exists() { installed } else { PathBuf::from("typos") }
}

impl Tool {
    /// The first line that the tool prints about its version; `None` if it is not there.
    fn version(&self, run: &Run) -> Option<String> {
        if let Source::Python(packages) | Source::Node(packages) = self.source {
            // Written after the installation, so that one that was interrupted counts for nothing.
            let installed = std::fs::read_to_string(foreign().join(self.name)).ok()?;
            return (installed == packages.join(" ")).then_some(installed);
        }
        let mut words = self.probe.split_whitespace();
        let program = words.next()?;
        let path = if program == "typos" { typos(run) } else { PathBuf::from(program) };
        let mut probe = run.program(&path.to_string_lossy());
        let text = run::printed(probe.args(words)).ok()?;
        text.lines().next().map(str::to_owned)
    }

    fn install(&self, run: &mut Run) {
        let step = format!("install {}", self.name);
        match self.source {
            Source::Cargo(package, version) => cargo_install(run, &step, package, &[version]),
            Source::CargoBare(package, version) => {
                cargo_install(run, &step, package, &[version, "--no-default-features"]);
            }
            Source::Toolchain(name) => {
                let mut add = run.program("rustup");
                run.command(&step, add.args(["toolchain", "install", name, "--profile", "minimal"]));
            }
            Source::Rustup(component) => {
                let mut add = run.program("rustup");
                run.command(&step, add.args(["component", "add", component]));
            }
            Source::Python(packages) => {
                let mut pip = run.program("python3");
                pip.env("PIP_ROOT_USER_ACTION", "ignore");
                pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]);
                run.command(&step, pip.arg(foreign().join("python")).args(packages));
                self.note(packages);
            }
            Source::Node(packages) => {
                let mut npm = run.program("npm");
                npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]);
                run.command(&step, npm.arg(foreign()).args(packages));
                self.note(packages);
            }
            Source::Target(system) => {
                let mut add = run.program("rustup");
                run.command(&step, add.args(["target", "add", system]));
            }
            Source::Apt(packages) => apt_install(run, &step, packages, self.probe),
            Source::Wheel(wheel, package, version) => {
                let python = run::output(run.program("python3").args(["-m", "pip", "--version"]));
                let mut pip = run.program("python3");
                // Root is no danger here: the folder is of this tool alone.
                pip.env("PIP_ROOT_USER_ACTION", "ignore");
                pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
                pip.arg(wheels(self)).arg(format!("{wheel}=={version}"));
                if python.is_err() || !run.tries(&step, &mut pip) {
                    cargo_install(run, &step, package, &[version]);
                }
            }
        }
    }
}

impl Tool {
    fn note(&self, packages: &[&str]) {
        let written = std::fs::create_dir_all(foreign())
            .and_then(|()| std::fs::write(foreign().join(self.name), packages.join(" ")));
        if let Err(error) = written {
            eprintln!("cannot write to {}: {error}", foreign().display());
        }
    }
}

/// Where the clients of others are that contend with ours; the tests look there too.
pub(crate) fn foreign() -> PathBuf {
    cache().join("foreign-clients")
}

/// Compiles a tool without optimization: cargo-nextest takes 146 CPU seconds instead of 477, cargo-deny 64
/// instead of 187, and neither gets slower by more than half a second a call.
fn cargo_install(run: &mut Run, step: &str, package: &str, version: &[&str]) {
    let mut install = run.cargo("install --locked --version");
    install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    run.command(step, install.args(version).arg(package));
}

/// Installs packages of Debian as root or through sudo; the package lists may be old, so once more after an update.
/// A package may bring a service that cannot start in a container: what counts is that the program is there.
fn apt_install(run: &mut Run, step: &str, packages: &str, probe: &str) {
    let is_root = run::output(run.program("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let sudo = if is_root { "" } else { "sudo --non-interactive " };
    let install = format!("{sudo}apt-get install --yes --no-install-recommends {packages}");
    let line = format!("{install} || {{ {sudo}apt-get update && {install}; }} || {probe}");
    let mut shell = run.program("sh");
    shell.env("DEBIAN_FRONTEND", "noninteractive").args(["-c", &line]);
    run.command(step, &mut shell);
}

/// Where the wheel of a tool is unpacked: below the user's cache, by version.
fn wheels(tool: &Tool) -> PathBuf {
    let version = if let Source::Wheel(_, _, version) = tool.source { version } else { "any" };
    cache().join(format!("{}-{version}", tool.name))
}

fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    cache.unwrap_or_else(|| home.join(".cache")).join("tenure-xtask")
}
