//! `--metrics`, `--metrics-file` and the log: what is told to those who watch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::world::{World, code, finish, signal, stderr, stdout, wait_for};

/// The numbers of a page by their series, of a page that is whole and as the format wants it.
pub(crate) fn parse(page: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut numbers = BTreeMap::new();
    let (mut helped, mut typed): (BTreeSet<&str>, BTreeMap<&str, &str>) = Default::default();
    if !page.ends_with('\n') {
        return Err("it does not end with a line".to_owned());
    }
    for line in page.lines() {
        let wrong = || format!("wrong: {line:?}");
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').ok_or_else(wrong)?;
            if text.is_empty() || !helped.insert(name) {
                return Err(wrong());
            }
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, of) = of.split_once(' ').ok_or_else(wrong)?;
            if !["counter", "gauge", "histogram"].contains(&of) || typed.insert(name, of).is_some() {
                return Err(wrong());
            }
        } else {
            let (series, number) = line.rsplit_once(' ').ok_or_else(wrong)?;
            let (name, labels) = series.split_once('{').ok_or_else(wrong)?;
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let family = family.filter(|family| typed.get(family) == Some(&"histogram")).unwrap_or(name);
            let is_named = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            let number: f64 = number.parse().map_err(|_| wrong())?;
            let is_new = numbers.insert(series.to_owned(), number).is_none();
            if !is_named
                || !labels.ends_with("\"}")
                || !typed.contains_key(family)
                || !helped.contains(family)
                || !is_new
            {
                return Err(wrong());
            }
        }
    }
    Ok(numbers)
}

/// Asks for the page.
fn scrape(mut stream: impl Read + Write) -> BTreeMap<String, f64> {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    parse(page).unwrap_or_else(|error| panic!("{error} in\n{page}"))
}

fn scrape_socket(world: &World, name: &str) -> BTreeMap<String, f64> {
    scrape(UnixStream::connect(world.path(name)).expect("it is served"))
}

#[test]
fn what_a_run_counts_is_served_while_it_runs() {
    let world = World::new();
    let socket = format!("unix:{}", world.path("sock").display());
    let flags = ["jobs/1", "--metrics", &socket, "--scope", "job*", "--scopes-max", "5"];
    let script = "trap 'exit 5' TERM; echo $$ > pid; while :; do sleep 0.1; done";
    let run = world.start_run(&flags, script);
    world.pid("pid");
    let page = scrape_socket(&world, "sock");
    let of = |series: &str| page.get(series).copied();
    assert_eq!(of(r#"tenure_leases{engine="local",kind="mutex",scope="job*"}"#), Some(1.0), "{page:?}");
    let granted = r#"tenure_claims_total{engine="local",kind="mutex",scope="job*",outcome="granted"}"#;
    assert_eq!(of(granted), Some(1.0), "{page:?}");
    let waiter = format!("unix:{}", world.path("waiter").display());
    let waiter = world.start_run(&["jobs/1", "--metrics", &waiter], "true");
    world.wait_for_waiters(1);
    let page = scrape_socket(&world, "waiter");
    assert_eq!(
        page.get(r#"tenure_waiting{engine="local",kind="mutex",scope="jobs/*"}"#),
        Some(&1.0),
        "{page:?}"
    );
    signal(run.id(), Signal::TERM);
    let output = finish(run);
    assert_eq!(code(&output), 5, "{output:?}");
    let served = format!("tenure: metrics are served at {socket}\n");
    assert!(stderr(&output).starts_with(&served), "{output:?}");
    assert_eq!(code(&finish(waiter)), 0);
    assert!(!world.path("sock").exists() && !world.path("waiter").exists());
}

#[test]
fn programs_are_told_where_the_page_is_and_have_no_part_in_it() {
    let world = World::new();
    let script = "ls /proc/self/fd | tr '\\n' ' '; grep SigBlk /proc/self/status; echo $$ > pid;
        while ! test -e go; do sleep 0.1; done";
    let events = fs::File::create(world.path("events")).expect("a file");
    let mut run = world.tenure(&["run", "x", "--json", "--metrics", "127.0.0.1:0", "--", "sh", "-c", script]);
    let run = run
        .stdout(fs::File::create(world.path("out")).expect("a file"))
        .stderr(events)
        .spawn()
        .expect("starts");
    world.watch(run.id());
    world.pid("pid");
    let event: serde_json::Value = serde_json::from_str(&world.line("events")).expect("an event");
    assert_eq!(event["event"], "metrics", "{event}");
    let address = event["address"].as_str().expect("an address").to_owned();
    let page = scrape(TcpStream::connect(&address).expect("it is served"));
    assert_eq!(page.get(r#"tenure_leases{engine="local",kind="mutex",scope="x"}"#), Some(&1.0), "{page:?}");
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(run)), 0);
    let plain = world.run(&["y"], "ls /proc/self/fd | tr '\\n' ' '; grep SigBlk /proc/self/status");
    assert_eq!(fs::read_to_string(world.path("out")).expect("it ran"), stdout(&plain));
}

#[test]
fn an_address_that_cannot_be_had_is_told_before_anything_is_claimed() {
    let world = World::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for flags in [["run", "x"], ["queue", "x"], ["cache", "x"]] {
        let command = if flags[0] == "queue" { vec!["queue", "work", "x"] } else { flags.to_vec() };
        let with = |address: &str| {
            let flags = ["--metrics", address, "--", "sh", "-c", "echo ran > ran"];
            world.output(&[&command[..], &flags[..]].concat())
        };
        let output = with(&address);
        assert_eq!(code(&output), 69, "{output:?}");
        let text = stderr(&output);
        let error = format!(
            "error: cannot serve metrics at {address}: address already in use\n\nhint: another process"
        );
        assert!(text.starts_with(&error), "{text}");
        let output = with("192.0.2.1:9184");
        assert_eq!(code(&output), 69, "{output:?}");
        assert!(stderr(&output).contains("hint: it is no address of this machine"), "{output:?}");
        for wrong in ["9184", "localhost:9184", ":9184", "unix:", "127.0.0.1"] {
            let output = with(wrong);
            assert_eq!(code(&output), 64, "{output:?}");
            let text = stderr(&output);
            assert!(
                text.contains("for '--metrics <ADDR>'\n\nhint: write 127.0.0.1:9184, or unix:/"),
                "{text}"
            );
        }
    }
    let output = world.run(&["x", "--metrics", "127.0.0.1:0", "--scopes-max", "0"], "echo ran > ran");
    assert_eq!(code(&output), 64, "{output:?}");
    assert!(!world.path("ran").exists());
    assert!(!world.path("engine").exists(), "it did not even connect");
}

#[test]
fn readers_that_do_not_read_cost_no_lease() {
    let world = World::new();
    let socket = format!("unix:{}", world.path("sock").display());
    let run = world.start_run(
        // A busy machine may stand still for longer than shorter ones last.
        &["x", "--ttl", "2s", "--metrics", &socket],
        "echo $$ > pid; while ! test -e go; do sleep 0.1; done",
    );
    world.pid("pid");
    let kept = r#"tenure_renewals_total{engine="local",outcome="kept"}"#;
    let silent: Vec<_> = (0..7).map(|_| UnixStream::connect(world.path("sock")).expect("connects")).collect();
    // Each asks for a page, and reads nothing of it.
    silent
        .iter()
        .for_each(|mut one| one.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent"));
    wait_for("renewals", || (scrape_socket(&world, "sock").get(kept)? >= &4.0).then_some(()));
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(run);
    assert_eq!(code(&output), 0, "{output:?}");
}

#[test]
fn queue_work_and_cache_serve_what_they_count() {
    let world = World::new();
    let socket = |name: &str| format!("unix:{}", world.path(name).display());
    let wait = "echo $$ > pid; while ! test -e go; do sleep 0.1; done";
    assert_eq!(code(&world.output(&["queue", "push", "jobs/7", "one"])), 0);
    let work = world.start(&[
        "queue",
        "work",
        "jobs/7",
        "--drain",
        "--metrics",
        &socket("work"),
        "--",
        "sh",
        "-c",
        wait,
    ]);
    world.pid("pid");
    let page = scrape_socket(&world, "work");
    assert_eq!(page.get(r#"tenure_queue_in_flight{engine="local",queue="jobs/*"}"#), Some(&1.0), "{page:?}");
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(work)), 0);
    fs::remove_file(world.path("go")).and_then(|()| fs::remove_file(world.path("pid"))).expect("files");
    let cache = world.start(&["cache", "rates", "--metrics", &socket("cache"), "--", "sh", "-c", wait]);
    world.pid("pid");
    let page = scrape_socket(&world, "cache");
    let leases = r#"tenure_leases{engine="local",kind="single_flight",scope="rates"}"#;
    assert_eq!(page.get(leases), Some(&1.0), "{page:?}");
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(cache)), 0);
}

/// What is known of a job, without what its series have in common.
fn known(path: &Path) -> BTreeMap<String, f64> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let numbers = parse(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
    let short = |(series, number): (String, f64)| {
        let name = series.split('{').next().expect("a name");
        (name.trim_start_matches("tenure_run_").to_owned(), number)
    };
    numbers.into_iter().map(short).collect()
}

/// A directory for node_exporter.
fn text_files(world: &World) -> std::path::PathBuf {
    let path = world.path("textfiles");
    fs::create_dir(&path).expect("a directory");
    path
}

#[test]
fn a_run_leaves_what_is_known_of_the_job() {
    let world = World::new();
    let file = text_files(&world).join("tenure_run_nightly_2freport.prom");
    let run = |script: &str| {
        let flags = ["nightly/report", "--metrics-file", "textfiles", "--expected", "26h", "--wait", "0s"];
        (code(&world.run(&flags, script)), known(&file))
    };
    // That it was granted is written beside the work, which a disk that hangs must not hold up.
    let during = "f=textfiles/tenure_run_nightly_2freport.prom; for _ in $(seq 3000); do grep -q '^tenure_run_running{.* 1$' $f && break; sleep 0.01; done; cp $f during";
    let (_, first) = run(during);
    let during = known(&world.path("during"));
    assert_eq!((during["running"], during.get("last_success_timestamp_seconds")), (1.0, None), "{during:?}");
    let names = [
        "expected_seconds",
        "last_exit_code",
        "last_hold_seconds",
        "last_start_timestamp_seconds",
        "last_success_timestamp_seconds",
        "last_wait_seconds",
        "running",
    ];
    assert_eq!(first.keys().collect::<Vec<_>>(), names);
    assert_eq!((first["running"], first["last_exit_code"], first["expected_seconds"]), (0.0, 0.0, 93_600.0));
    let success = first["last_success_timestamp_seconds"];
    assert!(success >= first["last_start_timestamp_seconds"], "{first:?}");
    let (exit, failed) = run("exit 75");
    assert_eq!(
        (exit, failed["last_exit_code"], failed["last_success_timestamp_seconds"]),
        (75, 75.0, success)
    );
    assert_eq!(failed.get("last_busy_timestamp_seconds"), None, "the program said so, not the lock");
    let holder =
        world.start_run(&["nightly/report"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let (exit, busy) = run("true");
    assert_eq!((exit, busy["last_exit_code"], busy["last_success_timestamp_seconds"]), (75, 75.0, success));
    let hold = |known: &BTreeMap<String, f64>| known["last_hold_seconds"];
    assert!(busy["last_busy_timestamp_seconds"] > success && hold(&busy) == hold(&failed), "{busy:?}");
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(holder)), 0);
    let (exit, missing) = {
        let flags = ["run", "nightly/report", "--metrics-file", "textfiles", "--", "no-such-program"];
        (code(&world.output(&flags)), known(&file))
    };
    assert_eq!((exit, missing["last_exit_code"], missing["running"]), (127, 127.0, 0.0));
    assert_eq!(missing.get("expected_seconds"), None, "it is not said any more");
    let (exit, again) = run("true");
    assert!(exit == 0 && again["last_success_timestamp_seconds"] > success, "{again:?}");
}

#[test]
fn a_killed_run_leaves_a_whole_file_and_the_next_one_corrects_it() {
    let world = World::new();
    let file = text_files(&world).join("tenure_run_x.prom");
    let flags = ["x", "--metrics-file", "textfiles"];
    let run = world.start_run(&flags, "echo $$ > pid; sleep 60");
    world.pid("pid");
    wait_for("what it holds", || (known(&file)["running"] == 1.0).then_some(()));
    signal(run.id(), Signal::KILL);
    finish(run);
    assert_eq!(known(&file)["running"], 1.0, "nobody has told");
    let next = world.start_run(&flags, "cp textfiles/tenure_run_x.prom during; exit 3");
    assert_eq!(code(&finish(next)), 3);
    assert_eq!(known(&file)["running"], 0.0);
    // While one of several runs, they are running.
    let flags = ["p", "--permits", "2", "--metrics-file", "textfiles"];
    let file = world.path("textfiles/tenure_run_p.prom");
    let long = world.start_run(&flags, "echo $$ > long; while ! test -e go; do sleep 0.1; done");
    world.pid("long");
    assert_eq!(code(&world.run(&flags, "true")), 0);
    assert_eq!((known(&file)["running"], known(&file)["last_exit_code"]), (1.0, 0.0));
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(long)), 0);
    assert_eq!(known(&file)["running"], 0.0);
}

#[test]
fn a_directory_that_is_missing_is_told_before_the_program_runs_and_one_that_vanishes_fails_no_job() {
    let world = World::new();
    let output = world.run(&["x", "--metrics-file", "nowhere"], "echo ran > ran");
    assert_eq!(code(&output), 69, "{output:?}");
    let text = stderr(&output);
    let error = "error: cannot write nowhere/tenure_run_x.prom: no such file or directory\n\nhint: --metrics-file names";
    assert!(text.starts_with(error), "{text}");
    assert!(!world.path("ran").exists() && !world.path("engine").exists());
    text_files(&world);
    let output = world.run(&["x", "--metrics-file", "textfiles"], "rm -r textfiles; exit 4");
    assert_eq!(code(&output), 4, "{output:?}");
    let text = stderr(&output);
    assert!(text.starts_with("warning: cannot write textfiles/tenure_run_x.prom: no such file"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let output = world.run(&["x", "--expected", "1h"], "true");
    assert_eq!(code(&output), 64, "{output:?}");
}

#[test]
fn a_writer_that_stands_still_holds_up_no_lease() {
    let world = World::new();
    let file = text_files(&world).join("tenure_run_x.prom");
    let flags = ["x", "--ttl", "300ms", "--metrics-file", "textfiles"];
    let run = world.start_run(&flags, "echo $$ > pid; while ! test -e go; do sleep 0.1; done; exit 6");
    world.pid("pid");
    wait_for("what it holds", || (known(&file)["running"] == 1.0).then_some(()));
    // As a process does that was stopped in the middle.
    let lock = fs::File::open(world.path("textfiles/tenure_run_x.prom.lock")).expect("it is there");
    flock(&lock, FlockOperation::LockExclusive).expect("locked");
    fs::write(world.path("go"), "").expect("a file");
    let output = finish(run);
    assert_eq!(code(&output), 6, "{output:?}");
    assert!(stderr(&output).contains("was not written within 2s"), "{output:?}");
}

mod crowd {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tenure_core::testing::random::more;

    const JOBS: usize = 4;

    /// Reads all files again and again, as node_exporter does. Returns how often.
    fn read_until(directory: &Path, is_over: &AtomicBool) -> usize {
        let mut last: BTreeMap<std::path::PathBuf, f64> = BTreeMap::new();
        let mut reads = 0;
        while !is_over.load(Ordering::Relaxed) {
            for entry in fs::read_dir(directory).expect("a directory").flatten() {
                let path = entry.path();
                if path.extension().is_none_or(|extension| extension != "prom") {
                    continue;
                }
                reads += 1;
                if let Some(&success) = known(&path).get("last_success_timestamp_seconds") {
                    let before = last.insert(path.clone(), success).unwrap_or_default();
                    assert!(success >= before, "{}: {success} after {before}", path.display());
                }
            }
        }
        reads
    }

    #[test]
    fn runs_that_are_killed_leave_whole_files_at_every_moment() {
        let total = more(80, 200);
        let world = World::new();
        let directory = text_files(&world);
        let is_over = AtomicBool::new(false);
        let mut random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        println!("seed {random}");
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_until(&directory, &is_over));
            let mut runs = Vec::new();
            for number in 0..total {
                let job = format!("job/{}", number % JOBS);
                let mut flags = vec![job.as_str(), "--quiet", "--metrics-file", "textfiles"];
                // Half of them wait, the others are busy most of the time.
                flags.extend((number % 8 < 4).then_some(["--wait", "0s"]).into_iter().flatten());
                let script = if below(4) == 0 { "exit 1" } else { "true" };
                runs.push(world.start_run(&flags, script));
                if below(5) == 0 {
                    // At any moment of its life, which may be over.
                    let victim = runs[usize::try_from(below(runs.len() as u64)).expect("small")].id();
                    if crate::world::is_alive(victim) {
                        drop(Command::new("kill").args(["-9", &victim.to_string()]).output());
                    }
                }
            }
            let codes: Vec<Option<i32>> = runs.into_iter().map(|run| finish(run).status.code()).collect();
            is_over.store(true, Ordering::Relaxed);
            let reads = reader.join().expect("every file was whole");
            let count = |wanted| codes.iter().filter(|code| **code == wanted).count();
            println!(
                "{reads} reads; killed {}, busy {}, done {}",
                count(None),
                count(Some(75)),
                count(Some(0))
            );
            assert!(reads > total && count(Some(0)) > JOBS);
        });
        for number in 0..JOBS {
            let job = format!("job/{number}");
            assert_eq!(code(&world.run(&[&job, "--metrics-file", "textfiles"], "true")), 0);
            let known = known(&directory.join(format!("tenure_run_job_2f{number}.prom")));
            assert_eq!((known["running"], known["last_exit_code"]), (0.0, 0.0), "{known:?}");
        }
    }
}

#[test]
fn the_log_is_json_if_that_is_asked_for() {
    let world = World::new();
    let with = |log: &str, format: &str| {
        let mut command = world.tenure(&["run", "x", "--", "true"]);
        command.env("TENURE_LOG", log).env("TENURE_LOG_FORMAT", format);
        let output = command.output().expect("it starts");
        assert_eq!(code(&output), 0, "{output:?}");
        stderr(&output)
    };
    let text = with("debug", "json");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let granted = lines.iter().find(|line| line["message"] == "granted").expect("it was granted");
    assert_eq!(
        (granted["level"].as_str(), granted["resource"].as_str()),
        (Some("DEBUG"), Some("x")),
        "{granted}"
    );
    assert!(granted["target"].as_str().is_some_and(|target| target.starts_with("tenure_core")), "{granted}");
    assert!(granted["timestamp"].is_string(), "{granted}");
    assert_eq!(with("", "json"), "", "a format alone shows nothing");
    let warning = "warning: TENURE_LOG_FORMAT is not understood: write `json` or `text`\n";
    assert_eq!(with("", "yaml"), warning);
    assert!(with("debug", "yaml").starts_with(warning));
    assert!(with("debug", "text").contains(" DEBUG "));
}

#[test]
fn what_operators_do_is_told_to_those_who_ask_for_it() {
    let world = World::new();
    let act = |arguments: &[&str]| {
        let mut command = world.tenure(arguments);
        command.env("TENURE_LOG", "tenure::audit=warn").env("TENURE_LOG_FORMAT", "json");
        let output = command.output().expect("it starts");
        let text = stderr(&output);
        let lines: Vec<serde_json::Value> = text
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let told = lines.iter().map(|line| {
            assert_eq!(
                (line["level"].as_str(), line["target"].as_str()),
                (Some("WARN"), Some("tenure::audit"))
            );
            assert!(line["user"].as_str().is_some_and(|user| !user.is_empty()), "{line}");
            assert!(line["host"].as_str().is_some_and(|host| !host.is_empty()), "{line}");
            assert!(line["pid"].as_u64().is_some() && line["timestamp"].is_string(), "{line}");
            assert_eq!(line["engine"], world.engine(), "{line}");
            let field = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            [field("act"), field("name"), field("detail"), field("outcome")].join("|")
        });
        assert!(!text.contains("secret payload"), "{text}");
        told.collect::<Vec<_>>()
    };
    let _holder = world.start_run(&["x"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let token = world.token();
    assert_eq!(act(&["release", "x", "--force"]), [format!("release|x|token {token}|broken")]);
    let _holder = world.start_run(&["p", "--permits", "2"], "echo $$ > pid2; sleep 60");
    world.pid("pid2");
    assert_eq!(act(&["resize", "p", "3", "--force"]), ["resize|p|3 units|done"]);
    assert_eq!(act(&["resize", "p", "4294967295", "--force"]), ["resize|p|4294967295 units|refused"]);
    assert_eq!(act(&["queue", "push", "q", "secret payload"]), [""; 0], "that is everybody's work");
    let fail = ["queue", "work", "q", "--drain", "--max-attempts", "1", "--", "false"];
    assert_eq!(act(&fail), [""; 0]);
    assert_eq!(act(&["queue", "replay", "q", "--all"]), ["queue replay|q|dead letters|1 in line again"]);
    assert_eq!(
        act(&["queue", "purge", "q", "--waiting", "--force"]),
        ["queue purge|q|items that wait|1 removed"]
    );
    assert_eq!(act(&["doctor", "--purge"]), ["doctor --purge||idle resources|0 removed"]);
    let silent = world.output(&["queue", "purge", "q", "--dead", "--force"]);
    assert_eq!(stderr(&silent), "", "who sets nothing sees what was there before");
}

#[test]
fn the_log_of_acts_shows_no_password() {
    let world = World::new();
    let mut command =
        world.tenure(&["release", "x", "--force", "--engine", "redis://ada:hunter2@127.0.0.1:1/"]);
    let output =
        command.env("TENURE_LOG", "trace").env("TENURE_LOG_FORMAT", "json").output().expect("starts");
    assert_eq!(code(&output), 69, "{output:?}");
    assert!(!stderr(&output).contains("hunter2"), "{output:?}");
}
