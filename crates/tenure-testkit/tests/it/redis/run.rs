//! Servers that all tests of a run share.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tenure_testkit::redis::{RedisOptions, RedisServer, Topology, shared};
use tenure_testkit::{Connection, Reply, TestDirectory, is_alive, wait_for};

/// Says to a played test process where it tells what it found.
const FOUND: &str = "TENURE_TESTKIT_FOUND";
/// Says to a played test process that it is the first of its run, and dies while it starts servers.
const DIES: &str = "TENURE_TESTKIT_DIES";

/// Plays a test process of a run.
#[test]
fn plays_a_test_process() {
    let Some(found) = std::env::var_os(FOUND).map(PathBuf::from) else { return };
    let text = if std::env::var_os(DIES).is_some() {
        tenure_testkit::shared::<()>("redis-single", |site| {
            tell(&found, &format!("{} {}", std::process::id(), site.path().display()));
            wait_for("end of this process", || None)
        })
    } else {
        shared(Topology::Single)
    };
    tell(&found, &text);
}

fn tell(found: &PathBuf, text: &str) {
    fs::write(found.with_extension("new"), text).unwrap();
    fs::rename(found.with_extension("new"), found).unwrap();
}

/// A process that runs test processes, and the run's id.
struct Run {
    files: TestDirectory,
    runner: Child,
    id: String,
}

impl Run {
    /// Starts one: a shell that starts what it reads.
    fn start(name: &str) -> Run {
        let id = format!("testkit-{}-{name}", std::process::id());
        let mut runner = Command::new("sh");
        let script = "while read -r found dies; do
            env NEXTEST_RUN_ID=\"$1\" TENURE_TESTKIT_FOUND=\"$found\" $dies \\
                \"$2\" --exact redis::run::plays_a_test_process >/dev/null &
        done; wait";
        runner.args(["-c", script, "nextest", &id]).arg(std::env::current_exe().unwrap());
        runner.env("TMPDIR", std::env::temp_dir()).env_remove("NEXTEST_RUN_ID");
        let runner = runner.stdin(Stdio::piped()).spawn().unwrap();
        Run { files: TestDirectory::new(), runner, id }
    }

    /// Starts a test process, which tells something in a file.
    fn test(&mut self, name: &str, dies: bool) -> PathBuf {
        use std::io::Write;
        let found = self.files.path().join(name);
        let dies = if dies { format!("{DIES}=1") } else { String::new() };
        writeln!(self.runner.stdin.as_ref().unwrap(), "{} {dies}", found.display()).unwrap();
        found
    }

    fn directory(&self) -> PathBuf {
        std::env::temp_dir().join(format!("tenure-run-{}", self.id))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // It may have been killed by the test.
        drop(self.runner.kill());
        drop(self.runner.wait());
    }
}

fn told(found: &PathBuf) -> String {
    wait_for("told text", || fs::read_to_string(found).ok())
}

fn pid_at(url: &str) -> u32 {
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let reply = Connection::to_port(port).unwrap().ask(&["INFO", "server"]).unwrap().to_string();
    reply.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().parse().unwrap()
}

#[test]
fn processes_of_a_run_share_servers_which_end_with_it() {
    let mut run = Run::start("shares");
    let found = [run.test("a", false), run.test("b", false), run.test("c", false)];
    let urls = found.each_ref().map(told);
    assert!(urls.iter().all(|url| *url == urls[0]), "{urls:?}");
    let pid = pid_at(&urls[0]);
    assert!(is_alive(pid));
    run.runner.kill().unwrap();
    // Not waited for: the killed runner is a zombie, as where nobody waits for it in a container.
    wait_for("end of the server", || (!is_alive(pid)).then_some(()));
    wait_for("removal of the files", || (!run.directory().exists()).then_some(()));
}

#[test]
fn a_starter_that_dies_half_way_is_replaced() {
    let mut run = Run::start("replaces");
    let first = told(&run.test("first", true));
    let (first, site) = first.split_once(' ').unwrap();
    let (first, site) = (first.parse().unwrap(), PathBuf::from(site));
    // The second waits for the first one's lock.
    let second = run.test("second", false);
    fs::write(site.join("left"), "by the first").unwrap();
    tenure_testkit::signal(first, rustix::process::Signal::KILL);
    let url = told(&second);
    assert!(is_alive(pid_at(&url)));
    assert!(!site.join("left").exists());
}

#[test]
fn a_shared_server_is_not_a_server_of_a_test() {
    let server = RedisServer::start(RedisOptions::default());
    let url = shared(Topology::Single);
    assert_ne!(url, server.url());
    assert_eq!(url, shared(Topology::Single));
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let pong = Connection::to_port(port).unwrap().ask(&["PING"]).unwrap();
    assert_eq!(pong, Reply::Bytes(b"PONG".to_vec()));
}
