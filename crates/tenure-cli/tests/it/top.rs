//! `tenure top` in a terminal of tmux: what a user sees, and that the terminal is given back.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::world::{World, code, finish, keeper, signal, state, stderr, stdout, wait_for};

/// What the shell in it says when it waits for a line.
const PROMPT: &str = "ready>";

/// A terminal with a shell in it.
struct Tmux<'a> {
    world: &'a World,
}

impl<'a> Tmux<'a> {
    fn start(world: &'a World, columns: u32, rows: u32) -> Tmux<'a> {
        let tmux = Tmux { world };
        let size = ["-x", &columns.to_string(), "-y", &rows.to_string()];
        let shell = ["exec env 'PS1=ready> ' bash --norc --noprofile -i"];
        tmux.ask(&[&["new-session", "-d"][..], &size, &shell].concat());
        tmux.wait_for(PROMPT);
        tmux
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        // A server of its own, and no settings of whoever runs the tests.
        command.arg("-S").arg(self.world.path("tmux")).args(["-f", "/dev/null", "-u"]).args(arguments);
        command.env("TENURE_ENGINE", self.world.engine()).env_remove("TMUX").env_remove("TENURE_LOG");
        command.env("LC_ALL", "C.UTF-8").current_dir(self.world.directory.path());
        let output = command.output().expect("tmux: `cargo xtask setup` installs it");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        stdout(&output)
    }

    fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// What tmux knows of the terminal.
    fn flag(&self, name: &str) -> String {
        self.ask(&["display-message", "-p", &format!("#{{{name}}}")]).trim().to_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    /// Waits for a screen on which something is.
    fn wait_for(&self, text: &str) -> String {
        self.wait_until(&format!("{text:?} on the screen"), |screen| screen.contains(text))
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        wait_for(what, || Some(self.screen()).filter(|screen| is_so(screen)))
    }

    /// Has the shell run the command, and returns its process.
    fn top(&self, arguments: &str) -> u32 {
        let line = format!("clear; {} top {arguments}; echo \"ended: $?\"", env!("CARGO_BIN_EXE_tenure"));
        self.keys(&[&line, "Enter"]);
        self.wait_for("? keys");
        keeper(self.flag("pane_pid").parse().expect("a process"))
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        self.ask(&["kill-server"]);
    }
}

/// The names of the first column below the headings.
fn names(screen: &str) -> Vec<&str> {
    let rows = screen.lines().skip(4).take_while(|line| !line.is_empty());
    rows.filter_map(|row| row.split_whitespace().next()).collect()
}

#[test]
fn it_shows_sorts_filters_and_frees() {
    let world = World::new();
    let holder = world.start_run(&["jobs/a", "--label", "nightly"], "echo $$ > a; sleep 60");
    world.pid("a");
    let _waiter = world.start_run(&["jobs/a"], "true");
    world.wait_for_waiters(1);
    let _other = world.start_run(&["other"], "echo $$ > other; sleep 60");
    world.pid("other");
    crate::queue::push(&world, "mails", &["one"]);
    let tmux = Tmux::start(&world, 80, 24);
    tmux.top("--sort name");
    let screen = tmux.wait_for("2 names: 2 held, 0 resting, 1 waiting, 1 queue, ");
    assert_eq!(names(&screen), ["jobs/a", "other"]);
    assert!(screen.contains("nightly (pid ") && screen.contains("answers in "), "{screen}");
    tmux.keys(&["r"]);
    tmux.wait_until("the other order", |screen| names(screen) == ["other", "jobs/a"]);
    tmux.keys(&["/", "J", "O", "B", "Enter"]);
    tmux.wait_until("the filter", |screen| names(screen) == ["jobs/a"]);
    tmux.keys(&["?"]);
    tmux.wait_for("free a lock: break its hold, after a question");
    tmux.keys(&["x", "Tab"]);
    tmux.wait_for("nothing has that in it: Esc takes the filter away");
    tmux.keys(&["Escape"]);
    tmux.wait_for("mails");
    tmux.keys(&["1", "/", "j", "o", "b", "Enter", "Enter"]);
    let screen = tmux.wait_for("waits 1");
    assert!(
        screen.contains("holds    nightly") && screen.contains("jobs/a: mutex, 1 of 1 in use"),
        "{screen}"
    );
    tmux.keys(&["f"]);
    tmux.wait_for("Its work will be ended, and the lock is free in ");
    tmux.keys(&["n"]);
    tmux.wait_for("nothing was broken");
    assert_eq!(world.status()[0]["holds"][0]["is_resting"], false);
    tmux.keys(&["f"]);
    tmux.wait_for("y: yes");
    tmux.keys(&["y"]);
    tmux.wait_for("broken: it is free in ");
    tmux.wait_for("rests    resting");
    assert_eq!(code(&finish(holder)), 76, "its work was ended");
    tmux.keys(&["Escape"]);
    // What has changed is seen without a key.
    tmux.wait_for("1 resting, 1 waiting");
    tmux.ask(&["resize-window", "-x", "200", "-y", "60"]);
    tmux.wait_until("all of the new size", |screen| {
        screen.lines().count() == 60 && screen.lines().nth(59).is_some_and(|line| line.ends_with("q quit"))
    });
    tmux.ask(&["resize-window", "-x", "80", "-y", "10"]);
    tmux.wait_until("all of the small size", |screen| {
        screen.lines().nth(9).is_some_and(|line| line.ends_with("q quit"))
    });
    tmux.keys(&["q"]);
    tmux.wait_for("ended: 0");
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    let world = World::new();
    let tmux = Tmux::start(&world, 80, 24);
    let settings = || {
        fs::remove_file(world.path("settings")).ok();
        tmux.keys(&["stty -g > settings", "Enter"]);
        world.line("settings")
    };
    let before = settings();
    let ends: [(&str, Option<Signal>, i32); 6] = [
        ("q", None, 0),
        ("C-c", None, 130),
        ("", Some(Signal::TERM), 143),
        ("", Some(Signal::INT), 130),
        ("", Some(Signal::HUP), 129),
        ("", Some(Signal::QUIT), 131),
    ];
    for (key, sent, expected) in ends {
        let top = tmux.top("");
        assert_eq!((tmux.flag("alternate_on"), tmux.flag("cursor_flag")), ("1".to_owned(), "0".to_owned()));
        match sent {
            Some(sent) => signal(top, sent),
            None => tmux.keys(&[key]),
        }
        tmux.wait_for(&format!("ended: {expected}"));
        assert_eq!((tmux.flag("alternate_on"), tmux.flag("cursor_flag")), ("0".to_owned(), "1".to_owned()));
        assert_eq!(settings(), before, "{key}{sent:?}");
    }
}

#[test]
fn it_is_stopped_and_continued_as_other_programs() {
    let world = World::new();
    let tmux = Tmux::start(&world, 80, 24);
    for (key, sent) in [("C-z", None), ("", Some(Signal::TSTP)), ("", Some(Signal::STOP))] {
        let top = tmux.top("");
        match sent {
            Some(sent) => signal(top, sent),
            None => tmux.keys(&[key]),
        }
        wait_for("a stopped program", || (state(top) == Some('T')).then_some(()));
        if sent != Some(Signal::STOP) {
            tmux.wait_for("Stopped");
            assert_eq!(tmux.flag("alternate_on"), "0", "the shell has its screen back");
        }
        tmux.keys(&["fg", "Enter"]);
        tmux.wait_until("the screen", |screen| {
            screen.contains("nothing is held") && screen.contains("? keys")
        });
        tmux.keys(&["?"]);
        tmux.wait_for("these keys");
        tmux.keys(&["?", "q"]);
        // After it was stopped, the shell ends the line with the code of the stop.
        wait_for("the end", || (tmux.flag("alternate_on") == "0").then_some(()));
        tmux.wait_for(PROMPT);
    }
}

#[test]
fn what_others_have_named_cannot_steer_the_terminal_on_redis() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(format!("{}?prefix=", server.url()));
    let wide = "账".repeat(85);
    for (name, holder) in [
        ("a", "\u{1b}[2J\u{1b}[31mred\u{1b}]2;stolen\u{7}"),
        ("b\u{202e}txt", "plain"),
        (&wide, "\u{1b}(0\u{9b}31m\r\n\u{8}wide"),
    ] {
        server.command(&["SET", name, holder, "PX", "600000"]);
    }
    let tmux = Tmux::start(&world, 80, 24);
    let title = tmux.flag("pane_title");
    tmux.top("--sort name");
    for columns in ["80", "200"] {
        tmux.ask(&["resize-window", "-x", columns, "-y", "24"]);
        let screen =
            tmux.wait_until("three rows", |screen| names(screen).len() == 3 && screen.contains("wide"));
        let rows: Vec<&str> = screen.lines().skip(4).take(3).collect();
        assert!(rows[0].starts_with("a ") && rows[0].contains("\\u{1b}"), "{screen}");
        assert!(rows[1].starts_with("b\\u{202e}txt "), "{screen}");
        assert!(rows[2].starts_with("账账") && rows[2].contains('…'), "{screen}");
        assert!(screen.lines().all(|line| !line.contains(char::is_control)), "{screen}");
        // The columns stay where they are, wide characters or not.
        assert!(rows.iter().all(|row| row.ends_with(" 0")), "{screen}");
    }
    tmux.keys(&["Down", "Down", "Enter"]);
    tmux.wait_for("holds ");
    assert_eq!(tmux.flag("pane_title"), title);
    assert!(
        tmux.ask(&["capture-pane", "-p", "-e"]).matches("\u{1b}[31m").count() == 0,
        "no colour of theirs"
    );
    tmux.keys(&["q"]);
    tmux.wait_for("ended: 0");
}

#[test]
fn a_store_that_goes_away_is_told_and_shown_again_when_it_is_back_on_redis() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(server.url());
    let tenure = pollster::block_on(tenure::connect(&world.engine())).expect("an engine");
    let held = pollster::block_on(tenure.mutex("x").ttl(Duration::from_secs(600)).acquire()).expect("free");
    let tmux = Tmux::start(&world, 80, 24);
    tmux.top("");
    tmux.wait_until("the lock", |screen| names(screen) == ["x"]);
    server.kill();
    let screen = tmux.wait_for("! no answer: ");
    assert_eq!(names(&screen), ["x"], "what was seen last stays, with its age: {screen}");
    tmux.keys(&["?"]);
    tmux.wait_for("these keys");
    tmux.keys(&["?"]);
    server.restart();
    tmux.wait_until("its return", |screen| {
        !screen.contains("no answer") && screen.contains("nothing is held")
    });
    tmux.keys(&["q"]);
    tmux.wait_for("ended: 0");
    drop(held);
}

#[test]
fn without_a_terminal_it_prints_a_screen() {
    let world = World::new();
    let empty = world.output(&["top"]);
    assert_eq!((code(&empty), stderr(&empty)), (0, String::new()));
    assert!(stdout(&empty).ends_with("\nnothing is held\n"), "{empty:?}");
    let _holder = world.start_run(&["jobs/a"], "echo $$ > a; sleep 60");
    world.pid("a");
    let _other = world.start_run(&["other"], "echo $$ > other; sleep 60");
    world.pid("other");
    let screen = stdout(&world.output(&["top", "jobs/", "--once"]));
    assert!(screen.contains("1 name: 1 held, ") && !screen.contains("other"), "{screen}");
    assert!(!screen.contains("? keys") && !screen.contains('\u{1b}'), "nobody hears a key: {screen}");
    let screen = stdout(&world.output(&["top", "--sort", "name", "--limit", "1"]));
    assert!(screen.contains("; 1 to 1 of 2\n") && names(&screen) == ["jobs/a"], "{screen}");
    let json = world.output(&["top", "--json", "--once", "--limit", "1"]);
    let look: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (&look["held"], &look["names"], look["locks"].as_array().map(Vec::len)),
        (&2.into(), &2.into(), Some(1))
    );
    assert!(look["answer_ms"].as_f64().is_some_and(|took| took > 0.0), "{look}");
    let away = World::on("redis://127.0.0.1:1");
    assert_eq!(code(&away.output(&["top"])), 69);
}

#[test]
fn it_looks_for_a_twentieth_of_the_time_at_most_on_redis() {
    let server = RedisServer::start(RedisOptions::default());
    let world = World::on(format!("{}?prefix=", server.url()));
    // As many keys that others have set: each is a lock that somebody holds.
    let fill = "for i = 1, 3000 do redis.call('SET', 'n' .. i, 'theirs', 'PX', 600000) end";
    server.command(&["EVAL", fill, "0"]);
    let mut top = world.start(&["top", "--json", "--interval", "1ms", "--limit", "1"]);
    let mut lines = BufReader::new(top.stdout.take().expect("a pipe")).lines();
    let mut next = || -> (Duration, u64) {
        let look: serde_json::Value =
            serde_json::from_str(&lines.next().expect("a line").expect("a line")).expect("JSON");
        assert_eq!(look["held"], 3000);
        let at = humantime_of(look["at"].as_str().expect("a time"));
        (at, look["took_ms"].as_u64().expect("a number"))
    };
    let (began, took) = next();
    let (ended, _) = next();
    let day = Duration::from_secs(86_400);
    let rested = if ended < began { ended + day - began } else { ended - began };
    assert!(
        took > 5 && rested >= Duration::from_millis(20 * took).max(Duration::from_secs(2)),
        "{took} ms, then {rested:?}"
    );
    signal(top.id(), Signal::TERM);
    finish(top);
}

/// The time of day of a text that ends in `T22:32:41.624Z`.
fn humantime_of(text: &str) -> Duration {
    let time = text.split_once('T').expect("a time").1.trim_end_matches('Z');
    let parts: Vec<f64> = time.split(':').map(|part| part.parse().expect("a number")).collect();
    Duration::from_secs_f64(parts[0] * 3600.0 + parts[1] * 60.0 + parts[2])
}

// page: docs/command.md "(what fits; 100 without a terminal)"
#[test]
fn a_hundred_locks_are_printed_where_there_is_no_terminal() {
    let world = World::new();
    let tenure = tenure::blocking::connect(&world.engine()).expect("it connects");
    let hold = |number| tenure.mutex(&format!("m{number:03}")).acquire().expect("it is free");
    let _held: Vec<_> = (0..101).map(hold).collect();
    let screen = stdout(&world.output(&["top", "--once", "--sort", "name"]));
    assert_eq!(names(&screen).iter().filter(|name| name.starts_with('m')).count(), 100, "{screen}");
    let look = stdout(&world.output(&["top", "--once", "--json"]));
    let look: serde_json::Value = serde_json::from_str(&look).expect("an object");
    assert_eq!(look["locks"].as_array().map(Vec::len), Some(100));
}
