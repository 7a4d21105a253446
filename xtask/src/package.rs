//! `cargo xtask package`: the command as a package for Debian and as an image for containers, into `target/package`.
//!
//! The package is linked with the C library of the system that it is made on, so that it is made on the oldest one that is served; the image
//! holds a program that needs none. Both are compiled as releases are: minutes each, which is why `ci` does neither. What users copy from
//! `packaging/` is checked by `crates/tenure-cli/tests/it/packaging.rs`, in seconds.
//!
//! Rejected: `docker build` of the Dockerfile, which needs a registry for its first stage and a compiler in it. buildah takes the rest of the same
//! file, and the program from here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::manifest::Manifest;
use crate::run::{self, Outcome, Run};
use crate::setup;
use crate::tree::Tree;

/// As what is handed out is compiled.
const BUILD: &str = "build --locked --profile dist --package tenure-cli --features otlp";
/// The system without a C library.
const STATIC: &str = "x86_64-unknown-linux-musl";
/// What an image may have, in bytes: what a node loads before a pod begins.
const IMAGE_BYTES_MAX: u64 = 40_000_000;

/// Makes what the words name, or both; `--check` installs and runs it in namespaces of its own, as root.
pub(crate) fn start(run: &mut Run, mut args: Args) -> Outcome<()> {
    let is_checked = args.flag("--check");
    let kind = args.word();
    args.finish()?;
    let (deb, image) = match kind.as_deref() {
        None => (true, true),
        Some("deb") => (true, false),
        Some("image") => (false, true),
        Some(other) => return Err(format!("{other:?} is no package: there are deb and image")),
    };
    let tree = Tree::read(run.root())?;
    let manifest = Manifest::parse(tree.text("Cargo.toml").unwrap_or_default());
    let version = manifest.value("workspace.package", "version").ok_or("the workspace has no version")?;
    let target = run.target()?;
    let made = target.join("package");
    std::fs::create_dir_all(&made).map_err(|error| format!("cannot make {}: {error}", made.display()))?;
    if deb {
        let path = made.join(format!("tenure_{version}_amd64.deb"));
        if make_deb(run, &target, version, &path)? && is_checked {
            check_deb(run, &path)?;
        }
    }
    if image {
        let archive = made.join(format!("tenure-{version}-image.tar"));
        if let Some(root) = make_image(run, &target, version, &archive)? {
            println!("{}: {:.1} MB unpacked", archive.display(), root.bytes as f64 / 1e6);
            if is_checked {
                check_image(run, &root)?;
            }
        }
    }
    Ok(())
}

/// Compiles the program, has it write its pages and completions, and packs what `crates/tenure-cli/Cargo.toml` lists.
fn make_deb(run: &mut Run, target: &Path, version: &str, path: &Path) -> Outcome<bool> {
    setup::need(run, &[&setup::CC, &setup::CARGO_DEB])?;
    if !run.command("program", &mut run.cargo(BUILD)) {
        return Ok(false);
    }
    let program = target.join("dist/tenure");
    let beside = target.join("dist/package");
    let write = |name: &str, text: String| {
        let path = beside.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&beside))
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = run::output(Command::new(&program).args(["completions", shell]))?;
        write(&format!("tenure.{shell}"), script)?;
    }
    // Pages of commands that are no more must not stay.
    drop(std::fs::remove_dir_all(beside.join("man")));
    run::output(Command::new(&program).args(["man", "--dir"]).arg(beside.join("man")))?;
    write("changelog", changelog(run, version)?)?;
    // Without a time, so that the same tree makes the same package.
    let zip = "gzip --force --best --no-name changelog man/*";
    run::output(Command::new("sh").args(["-c", zip]).current_dir(&beside))?;
    let mut deb = run.cargo("deb --no-build --profile dist --package tenure-cli --deb-revision= --output");
    Ok(run.command("deb", deb.arg(path)))
}

/// What Debian wants to know of a version: that of the project is in `CHANGELOG.md`.
fn changelog(run: &Run, version: &str) -> Outcome<String> {
    // That of the commit.
    let date = run::output(run.program("git").args(["log", "-1", "--format=%cD"]))?;
    Ok(format!(
        "tenure ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- {MAINTAINER}  {}\n",
        date.trim()
    ))
}

/// As `crates/tenure-cli/Cargo.toml` names them.
const MAINTAINER: &str = "The tenure contributors <tenure@users.noreply.github.com>";

/// Installs the package on a copy of this system that nobody else sees, and asks those who know what a package should be.
fn check_deb(run: &mut Run, path: &Path) -> Outcome<()> {
    setup::need(run, &setup::FOR_DEB)?;
    let mut lintian = run.program("lintian");
    run.command("lintian", lintian.args(["--fail-on", "error", "--allow-root"]).arg(path));
    let check = run.root().join("packaging/debian/check.sh");
    run.command("installed", as_root(run, "sh").arg(check).arg(path));
    Ok(())
}

/// An image, unpacked.
struct Image {
    root: PathBuf,
    bytes: u64,
}

/// Compiles the program without a C library, and writes the image as `docker load` and `podman load` read it.
fn make_image(run: &mut Run, target: &Path, version: &str, archive: &Path) -> Outcome<Option<Image>> {
    setup::need(run, &[&setup::MUSL, &setup::STATIC_STD, &setup::BUILDAH])?;
    if !run.command("static program", run.cargo(BUILD).args(["--target", STATIC])) {
        return Ok(None);
    }
    let made = target.join("package");
    let stage = made.join("stage");
    let fresh = |path: &Path| {
        drop(std::fs::remove_dir_all(path));
        std::fs::create_dir_all(path).map_err(|error| format!("cannot make {}: {error}", path.display()))
    };
    fresh(&stage.join("licences"))?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let to = stage.join("licences").join(licence);
        std::fs::copy(run.root().join(licence), to).map_err(|error| format!("{licence}: {error}"))?;
    }
    let program = target.join(STATIC).join("dist/tenure");
    run::output(run.program("strip").arg("-o").arg(stage.join("tenure")).arg(program))?;
    let storage = made.join("storage");
    let buildah = |run: &Run, arguments: &[&str]| {
        let mut buildah = as_root(run, "buildah");
        // Without kernel modules and without a daemon.
        buildah.args(["--storage-driver", "vfs", "--root"]).arg(storage.join("root"));
        buildah.arg("--runroot").arg(storage.join("run")).args(arguments);
        buildah
    };
    let tag = format!("tenure:{version}");
    let mut build = buildah(run, &["build", "--isolation", "chroot", "--format", "docker", "--no-cache"]);
    build.args(["--tag", &tag, "--file", "packaging/container/Dockerfile", "--build-context"]);
    build.arg(format!("binary={}", stage.display())).arg(&stage);
    drop(std::fs::remove_file(archive));
    let to = format!("docker-archive:{}:{tag}", archive.display());
    if !run.command("image", &mut build) || !run.command("archive", &mut buildah(run, &["push", &tag, &to])) {
        return Ok(None);
    }
    let container = run::output(&mut buildah(run, &["from", "--pull-never", &tag]))?;
    let mounted = run::output(&mut buildah(run, &["mount", container.trim()]))?;
    let root = made.join("rootfs");
    drop(std::fs::remove_dir_all(&root));
    run::output(as_root(run, "cp").arg("--archive").arg(mounted.trim()).arg(&root))?;
    run::output(&mut buildah(run, &["rm", container.trim()]))?;
    run::output(&mut buildah(run, &["rmi", &tag]))?;
    let bytes = run::output(run.program("du").args(["--bytes", "--summarize"]).arg(&root))?;
    let bytes = bytes.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or(u64::MAX);
    if bytes > IMAGE_BYTES_MAX {
        return Err(format!("the image has {bytes} bytes, and may have {IMAGE_BYTES_MAX}"));
    }
    Ok(Some(Image { root, bytes }))
}

/// Runs it read-only and as its user.
fn check_image(run: &mut Run, image: &Image) -> Outcome<()> {
    setup::need(run, &setup::FOR_IMAGE)?;
    let check = run.root().join("packaging/container/check.sh");
    run.command("run", as_root(run, "sh").arg(check).arg(&image.root));
    Ok(())
}

/// A program that needs root, for namespaces and the owners of files.
fn as_root(run: &Run, program: &str) -> Command {
    let is_root = run::output(run.program("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if is_root {
        return run.program(program);
    }
    let mut sudo = run.program("sudo");
    sudo.args(["--non-interactive", program]);
    sudo
}
