//! Where servers live, and what ends them when the test cannot.
//!
//! A test process may be killed at any point, and then runs no destructor. So each site has a *reaper*: a shell
//! in a process group of its own, which waits and then kills the servers of the site and removes the directory.
//! It waits for the end of a pipe whose other end is in the test process alone; or, for the servers that all
//! tests of a run share, until the process is gone that runs the tests. Rejected: a signal on the parent's death
//! (it comes at the end of the parent's *thread*, and needs unsafe code); a polling thread (it dies with the
//! process).
//!
//! A server's process writes its id into the file `pid` of its directory before it becomes the server, so there
//! is no moment in which a server runs and nobody knows it. The reaper first moves the directory away: what
//! starts after that finds no directory and ends. It kills only what has its working directory on the site, so
//! an id that was given to another process meanwhile harms nobody.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{StatVfsMountFlags, statvfs};

/// The least room of a place in memory: what the servers of some tests take at once, several times over.
const MEMORY_MIN: u64 = 4 << 30;

/// What a reaper does in the end; `$1` is the site. A server whose directory has a file `ends-by` gets the signal
/// that it names first, and 5 s to clean up. Where `/proc` is that of another PID namespace, ids cannot
/// be checked there and are believed.
const REAP: &str = r#"
wait_for_end() {
    tries=100
    while [ $tries -gt 0 ] && read -r stat <"/proc/$1/stat"; do
        case "${stat##*") "}" in Z*) return ;; esac
        tries=$((tries - 1))
        sleep 0.05
    done
}
reap() {
    gone="$1.gone-$$"
    mv "$1" "$gone" 2>/dev/null || return 0
    for round in 1 2; do
        for file in "$gone"/*/pid; do
            pid= && read -r pid <"$file"
            [ -n "$pid" ] && [ "$pid" != $$ ] || continue
            if [ /proc/$$/cwd -ef . ]; then
                case "$(readlink "/proc/$pid/cwd")" in "$gone"/*) ;; *) continue ;; esac
            fi
            # Those that a server has started may have been stopped, and would not notice that it is gone.
            read -r children <"/proc/$pid/task/$pid/children"
            if read -r signal <"${file%pid}ends-by"; then
                kill -"$signal" "$pid" && wait_for_end "$pid"
            fi
            kill -9 "$pid" $children
            children=
        done
        [ $round = 2 ] || sleep 0.05
    done
    rm -rf "$gone"
} 2>/dev/null
"#;

/// Waits for the end of the process that has the other end of the pipe.
const WAIT_FOR_PIPE: &str = "read -r _";

/// Waits until the process `$2` is gone, which began at the time `$3`; then it takes the place of the site away,
/// too. A dead process may stay a zombie for long, and its id may be given to another one.
const WAIT_FOR_RUNNER: &str = r#"
runs() {
    if [ "$3" = unknown ]; then
        kill -0 "$2"
    else
        read -r stat <"/proc/$2/stat" || return 1
        set -- "$3" ${stat##*") "}
        [ "$2" != Z ] && [ "${21}" = "$1" ]
    fi
} 2>/dev/null
while runs "$@"; do sleep 2; done
trap 'rm -f "$1.lock"; rmdir "${1%/*}"' EXIT
"#;

/// A directory for servers, and a process that ends them when this value or the test process ends.
#[derive(Debug)]
pub struct Site {
    path: PathBuf,
    reaper: Option<(Child, ChildStdin)>,
}

impl Site {
    /// Makes one, in the place for the files of servers.
    ///
    /// # Panics
    /// If it cannot.
    #[allow(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Arc<Site> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place().join(format!("tenure-site-{}-{count}", std::process::id()));
        // An earlier process with this id may have been killed, and its reaper as well.
        drop(fs::remove_dir_all(&path));
        fs::create_dir(&path).expect("a directory for temporary files");
        let mut command = reaper(WAIT_FOR_PIPE, &path, &[]);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("sh");
        let pipe = child.stdin.take().expect("it was asked for");
        Arc::new(Site { path, reaper: Some((child, pipe)) })
    }

    /// Makes one at a path whose servers end with another process, of which the id and the time of its start
    /// are given. What an earlier site at that path has left is ended first.
    pub(crate) fn until_end_of(path: &Path, pid: u32, started: &str) -> Arc<Site> {
        // At its end it finds nothing, or the next site here, which ends with the same process.
        let reaped = reaper("", path, &[]).status().expect("sh");
        assert!(reaped.success(), "what an earlier process left in {} is still there", path.display());
        fs::create_dir(path).expect("a new directory for servers");
        drop(reaper(WAIT_FOR_RUNNER, path, &[&pid.to_string(), started]).spawn().expect("sh"));
        Arc::new(Site { path: path.to_owned(), reaper: None })
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some((mut child, pipe)) = self.reaper.take() {
            drop(pipe);
            // Why it failed is nowhere to be reported: the test is over.
            drop(child.wait());
        }
    }
}

/// Where the files of servers are: in memory if it has the room, else in the place for temporary files.
///
/// No test cuts the power, so a disk would only make servers wait: etcd has no switch for that, and answers nothing for
/// seconds while a compiler's gigabytes are written back.
pub(crate) fn place() -> PathBuf {
    let (memory, disk) = (Path::new("/dev/shm"), std::env::temp_dir());
    let has_room = statvfs(memory).is_ok_and(|found| {
        let is_executable = !found.f_flag.contains(StatVfsMountFlags::NOEXEC);
        // Some servers are given a library to load.
        is_executable && found.f_bavail.saturating_mul(found.f_frsize) >= MEMORY_MIN
    });
    let was_told = std::env::var_os("TMPDIR").is_some();
    if has_room && !was_told { memory.to_owned() } else { disk }
}

/// A shell that waits, and then ends the servers of a site.
fn reaper(wait: &str, site: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{REAP}\n{wait}\nreap \"$1\"")).arg("tenure-reaper");
    command.arg(site).args(arguments).current_dir(std::env::temp_dir());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command
}
