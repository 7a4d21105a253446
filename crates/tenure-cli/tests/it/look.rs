//! `tenure status`, `tenure watch`, `tenure doctor`: what is seen from outside.

use std::fs;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use rustix::process::Signal;
use tenure_core::testing::busy::assert_in_time;

use crate::world::{World, code, finish, now, signal, stdout};

#[test]
fn status_lists_who_holds_and_who_waits() {
    let world = World::new();
    assert_eq!(stdout(&world.output(&["status"])), "nothing is held\n");
    let holder = world.start_run(&["jobs/a", "--label", "nightly"], "echo $$ > pid; sleep 60");
    world.pid("pid");
    let waiter = world.start_run(&["jobs/a"], "true");
    world.wait_for_waiters(1);
    let status = world.status();
    let resource = &status[0];
    assert_eq!(resource["resource"], "jobs/a");
    assert_eq!(resource["kind"], "mutex");
    assert_eq!((resource["capacity"].as_u64(), resource["used"].as_u64()), (Some(1), Some(1)));
    let hold = &resource["holds"][0];
    assert_eq!(hold["holder"]["pid"], holder.id());
    assert_eq!(hold["holder"]["program"], "tenure");
    assert_eq!(hold["holder"]["text"], "nightly");
    assert_eq!(hold["is_resting"], false);
    assert_eq!(hold["token"], resource["last_token"]);
    assert!(hold["ends_in_ms"].as_u64().is_some_and(|millis| millis <= 30_000));
    assert!(hold["held_ms"].as_u64().is_some());
    assert_eq!(resource["waiting"], 1);
    assert_eq!(resource["waiters"][0]["holder"]["pid"], waiter.id());
    assert_eq!(resource["waiters"][0]["holder"]["text"], "sh", "the program's name is the default label");
    let table = stdout(&world.output(&["status", "--prefix", "jobs/"]));
    let heading = table.lines().next().expect("a heading");
    let words: Vec<&str> = heading.split("  ").filter(|word| !word.is_empty()).map(str::trim).collect();
    assert_eq!(words, ["RESOURCE", "KIND", "HOLDER", "TOKEN", "HELD FOR", "ENDS IN", "WAITERS"]);
    assert!(table.contains(&format!("  nightly (pid {} on ", holder.id())), "{table}");
    assert_eq!(stdout(&world.output(&["status", "--prefix", "other/"])), "nothing is held\n");
}

#[test]
fn status_of_one_name_is_exact_and_answers_by_its_exit_code() {
    let world = World::new();
    let of = |name: &str| world.output(&["status", name]);
    assert_eq!((code(&of("x")), stdout(&of("x")).as_str()), (1, "nobody holds \"x\"\n"));
    let run = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    assert_eq!(code(&of("x")), 0);
    assert!(stdout(&of("x")).lines().nth(1).is_some_and(|line| line.starts_with("x ")));
    assert_eq!(code(&of("x/y")), 1);
    let json = world.output(&["status", "x/y", "--json"]);
    assert_eq!((code(&json), stdout(&json).trim()), (1, "[]"));
    fs::write(world.path("go"), "").expect("a file");
    assert_eq!(code(&finish(run)), 0);
    assert_eq!(code(&of("x")), 1);
}

#[test]
fn status_shows_rests_as_rests() {
    let world = World::new();
    assert_eq!(code(&world.run(&["x", "--every", "1h"], "true")), 0);
    assert_eq!(world.status()[0]["holds"][0]["is_resting"], true);
    assert!(world.status()[0]["holds"][0]["claim"].is_null());
    assert!(stdout(&world.output(&["status"])).contains("resting after sh (pid "));
}

#[test]
fn each_command_has_a_manual_page_also_those_of_queues() {
    let world = World::new();
    for command in [&["run"][..], &["queue"], &["queue", "push"], &["queue", "work"], &["fence", "check"]] {
        let output = world.output(&[&["man"], command].concat());
        let name = format!("tenure-{}", command.join("-"));
        assert_eq!(code(&output), 0, "{output:?}");
        assert!(stdout(&output).replace("\\-", "-").contains(&format!(".TH {name}")), "{name}");
    }
}

#[test]
fn all_manual_pages_are_installed_with_their_sections() {
    let world = World::new();
    let pages = world.path("man/man1");
    assert_eq!(code(&world.output(&["man", "--dir", pages.to_str().expect("UTF-8")])), 0);
    let read = |name: &str| fs::read_to_string(pages.join(name)).expect("a page");
    for name in ["tenure.1", "tenure-run.1", "tenure-queue.1", "tenure-queue-push.1", "tenure-fence-check.1"]
    {
        let page = read(name);
        assert!(page.lines().any(|line| line.starts_with(".TH") && line.contains("\"tenure ")), "{page}");
        assert!(page.contains("ENVIRONMENT") && !page.contains("EXTRA"), "{page}");
    }
    let run = read("tenure-run.1");
    for section in [".SH EXAMPLES", ".SH EXIT CODES", ".SH ENVIRONMENT", ".SH SEE ALSO"] {
        assert!(run.contains(section), "{section}: {run}");
    }
    assert!(run.contains("tenure run backup \\-\\- ./backup.sh"), "examples stay as they are: {run}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let world = World::new();
    let script = format!(
        "{} completions bash | head -n 1 > head; echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_tenure")
    );
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(world.directory.path())
        .output()
        .expect("bash");
    assert_eq!(stdout(&output), "0\n");
}

#[test]
fn watch_shows_each_change_as_it_happens() {
    let world = World::new();
    let mut watch = world.start(&["watch", "x", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    let first = next();
    assert_eq!((first["event"].as_str(), first["name"].as_str()), (Some("idle"), Some("x")));
    let holder = world.start_run(&["x"], "echo $$ > pid; while ! test -e go; do sleep 0.1; done");
    world.pid("pid");
    let granted = next();
    assert_eq!(granted["event"], "granted");
    assert_eq!(granted["holder"]["pid"], holder.id());
    let waiter = world.start_run(&["x"], "true");
    let waiting = next();
    assert_eq!((waiting["event"].as_str(), waiting["waiting"].as_u64()), (Some("waiting"), Some(1)));
    signal(waiter.id(), Signal::TERM);
    assert_eq!(next()["waiting"], 0);
    fs::write(world.path("go"), "").expect("a file");
    let ended = next();
    assert_eq!((ended["event"].as_str(), &ended["token"]), (Some("ended"), &granted["token"]));
    assert_eq!(next()["event"], "idle");
    assert_eq!(code(&finish(holder)), 0);
    signal(watch.id(), Signal::TERM);
    drop(finish(waiter));
}

#[test]
fn watch_shows_changes_of_many_names() {
    let world = World::new();
    let before = world.start_run(&["jobs/a"], "echo $$ > a; while ! test -e go; do sleep 0.1; done");
    world.pid("a");
    let mut watch = world.start(&["watch", "jobs/", "--json"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    let first = next();
    assert_eq!((&first["name"], &first["event"]), (&"jobs/a".into(), &"held".into()), "{first}");
    assert_eq!(first["holder"]["pid"], before.id());
    // What has another beginning is not shown.
    let _other = world.start_run(&["other"], "echo $$ > other; sleep 60");
    world.pid("other");
    let after = world.start_run(&["jobs/b"], "echo $$ > b; sleep 60");
    world.pid("b");
    let granted = next();
    assert_eq!((&granted["name"], &granted["event"]), (&"jobs/b".into(), &"granted".into()), "{granted}");
    assert_eq!(granted["holder"]["pid"], after.id());
    fs::write(world.path("go"), "").expect("a file");
    let seen = [next(), next()].map(|change| (change["name"].clone(), change["event"].clone()));
    assert_eq!(seen, [("jobs/a".into(), "ended".into()), ("jobs/a".into(), "idle".into())]);
    assert_eq!(code(&finish(before)), 0);
    signal(watch.id(), Signal::TERM);
    finish(watch);
    // As text, a line bears the name.
    let mut watch = world.start(&["watch", "--prefix", ""]);
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().expect("a line").expect("a line");
    assert!(line().contains("Z  jobs/b  held      token "));
    assert!(line().contains("Z  other  held      token "));
    signal(watch.id(), Signal::TERM);
    finish(watch);
    let nothing = world.output(&["watch"]);
    assert_eq!(code(&nothing), 64, "{nothing:?}");
}

#[test]
fn doctor_says_what_it_finds() {
    let world = World::new();
    let output = world.output(&["doctor"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(stdout(&output).starts_with("good     engine: local:/"), "{output:?}");
    let json = world.output(&["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(findings[0]["severity"], "good");
    assert_eq!(findings[0]["what"], "engine");
    assert!(findings[0].get("answer_ms").is_none(), "a field of its own finding alone");
    let answer = findings.as_array().and_then(|all| all.iter().find(|finding| finding["what"] == "answer"));
    let took = answer.and_then(|answer| answer["answer_ms"].as_f64()).expect("a number");
    assert!(took > 0.0 && took < 2000.0, "{took}");
}

#[test]
fn completions_and_manual_pages_are_made_from_the_flags() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&world.output(&["completions", shell]));
        assert!(script.contains("max-hold"), "{shell}");
    }
    assert!(stdout(&world.output(&["man"])).contains(".TH tenure 1"));
    let page = stdout(&world.output(&["man", "run"]));
    assert!(page.contains(".TH tenure-run 1") && page.contains("on\\-loss"), "{page}");
    assert_eq!(code(&world.output(&["man", "nosuch"])), 64);
    assert_eq!(code(&world.output(&["completions", "nosuch"])), 64);
}

/// What bash offers for a line, by the script that `tenure completions bash` writes.
fn completed(world: &World, line: &str) -> Vec<String> {
    let script = r#"
        PATH="${1%/*}:$PATH"
        . <(tenure completions bash)
        COMP_LINE="$2" COMP_POINT=${#2}
        read -ra COMP_WORDS <<< "${2//:/ : }"
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        _tenure_names tenure "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", script, "bash", env!("CARGO_BIN_EXE_tenure"), line])
        .env("TENURE_ENGINE", world.engine());
    let output = bash.output().expect("bash");
    assert!(output.stderr.is_empty(), "{output:?}");
    stdout(&output).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn names_of_locks_in_use_are_completed() {
    let world = World::new();
    for (number, name) in ["billing/a", "billing:b", "bi $x", "other"].into_iter().enumerate() {
        world.start_run(&[name], &format!("echo $$ > pid{number}; sleep 60"));
        world.pid(&format!("pid{number}"));
    }
    // What was used once is not in use.
    assert_eq!(code(&world.run(&["bitter"], "true")), 0);
    assert_eq!(completed(&world, "tenure status bi"), ["bi\\ \\$x", "billing/a", "billing:b"]);
    // Bash puts it behind the colon.
    assert_eq!(completed(&world, "tenure release billing:"), ["b"]);
    assert_eq!(completed(&world, "tenure run --ttl 5s oth"), ["other"]);
    let engine = world.engine();
    assert_eq!(completed(&world, &format!("tenure --engine {engine} watch oth")), ["other"]);
    // Words of the work, queues, flags and commands are no locks.
    for line in ["tenure run x -- oth", "tenure queue push oth", "tenure status --oth", "tenure oth"] {
        assert_eq!(completed(&world, line), [""; 0], "{line}");
    }
    assert_eq!(completed(&world, "tenure sta"), ["status"]);
    for (shell, asks) in [("zsh", ":_tenure_names'"), ("fish", "-a '(__fish_tenure_names)'")] {
        let script = stdout(&world.output(&["completions", shell]));
        // Of `run`, `elect`, `status`, `watch`, `release` and `resize`.
        assert_eq!(script.matches(asks).count(), 6, "{shell}");
    }
}

#[test]
fn a_completion_is_silent_whatever_goes_wrong_and_takes_a_second_at_most() {
    // It lets clients in and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let engines = [format!("redis://{}", silent.local_addr().expect("an address"))];
    for engine in engines.iter().map(String::as_str).chain(["nosuch:", "", "local:/dev/null/x"]) {
        let world = World::on(engine);
        let began = now();
        let output = world.output(&["completions", "--names", "x"]);
        assert_in_time(began.elapsed(), Duration::from_millis(1300));
        assert_eq!(code(&output), 0, "{output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_hundred_names_are_completed_at_most() {
    let world = World::new();
    let tenure = pollster::block_on(tenure::connect(&world.engine())).expect("an engine");
    let mutexes: Vec<_> = (0..150).map(|number| tenure.mutex(&format!("n{number:03}"))).collect();
    let held: Vec<_> =
        mutexes.iter().map(|mutex| pollster::block_on(mutex.acquire()).expect("it is free")).collect();
    let names = stdout(&world.output(&["completions", "--names", "n"]));
    assert_eq!((names.lines().count(), names.lines().last()), (100, Some("n099")));
    drop(held);
}

#[test]
fn a_password_is_never_shown() {
    let world = World::new();
    let assert_hidden = |url: &str, arguments: &[&str]| {
        let output = world.tenure(arguments).env("TENURE_ENGINE", url).output().expect("it starts");
        let shown = format!("{}{}", stdout(&output), crate::world::stderr(&output));
        assert!(!shown.contains("hun") && !shown.contains("ter2"), "{url} {arguments:?}: {shown}");
    };
    for arguments in [&["--help"][..], &["run", "--help"], &["status"], &["run", "--json", "x", "--", "true"]]
    {
        assert_hidden("redis://me:hunter2@host", arguments);
    }
    for url in [
        "redis://me:hunter2@host",
        "postgres://u:hun/ter2@127.0.0.1:1/db",
        "redis://u:hun/ter2@127.0.0.1:1/0",
        "mysql://u:hun?ter2@127.0.0.1:1/db",
        "redys://me:hun#ter2@host",
        "me:hun@ter2@host",
        "host=x password=hunter2",
    ] {
        assert_hidden(url, &["doctor"]);
    }
}

#[test]
fn an_empty_engine_is_an_error_and_not_this_machine() {
    let world = World::new();
    for arguments in [&["run", "x", "--", "true"][..], &["status"], &["doctor"], &["queue", "ls"]] {
        let output = world.tenure(arguments).env("TENURE_ENGINE", "").output().expect("it starts");
        let shown = crate::world::stderr(&output);
        assert_eq!(code(&output), 64, "{arguments:?}: {shown}");
        assert!(shown.contains("empty") && shown.contains("hint: "), "{arguments:?}: {shown}");
    }
    let output = world.tenure(&["man"]).env("TENURE_ENGINE", "").output().expect("it starts");
    assert_eq!(code(&output), 0, "what needs no engine");
}

#[test]
fn under_sudo_the_command_says_whose_store_it_is() {
    let world = World::new();
    let shown = |engine: &str, user: &str| {
        let mut command = world.tenure(&["status"]);
        let output = command.env("TENURE_ENGINE", engine).env("SUDO_UID", user).output();
        crate::world::stderr(&output.expect("it starts"))
    };
    let text = shown("local:", "1234");
    assert!(text.contains("warning") && text.contains("user 1234"), "the tests run as root: {text}");
    assert_eq!(shown("local:", "0"), "");
    assert_eq!(shown(&world.engine(), "1234"), "");
}
