//! The dashboard of `tenure serve`, as an operator uses it: in Chromium, on Redis, and checked by `tenure status`.
//!
//! Each test waits for what it has done to be seen; none waits for a time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::{Port, foreign};

use crate::browser::Browser;
use crate::redis;
use crate::world::{World, code, finish, signal, stdout, wait_for};

/// A name that would run a script, if it were not text.
const BAIT: &str = "<img src=x onerror=\"document.title='run'\">";
const ENTER: &str = "\u{E007}";
const TAB: &str = "\u{E004}";

/// A server with tokens, and a browser.
struct Desk {
    world: World,
    port: Port,
    server: Option<Child>,
    token: String,
    browser: Browser,
}

impl Desk {
    /// Opens the dashboard with a token that may do this.
    fn open(world: World, allow: &[&str]) -> Desk {
        let desk = Desk::closed(world, allow).served();
        desk.browser.open(&desk.url(""));
        desk.sign_in();
        desk
    }

    fn served(mut self) -> Desk {
        self.serve();
        self
    }

    fn sign_in(&self) {
        self.browser.enter("#token", &self.token);
        self.browser.click("button.main", "Sign in");
        self.browser.find("h1", "Overview");
    }

    fn closed(world: World, allow: &[&str]) -> Desk {
        let flags: Vec<&str> = allow.iter().flat_map(|rule| ["--allow", rule]).collect();
        let made = world.output(&[&["serve", "token", "ops"], &flags[..]].concat());
        let made = stdout(&made);
        let (token, entry) = made.split_once("\n\n").expect("a token and its entry");
        let files = [("tokens.toml", entry), ("cookie.key", &*"k".repeat(64))];
        for (name, text) in files {
            fs::write(world.path(name), text).expect("a file");
            fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o600)).expect("its mode");
        }
        let (token, browser) = (token.to_owned(), Browser::start(1280, 900));
        Desk { world, port: Port::free(), server: None, token, browser }
    }

    fn serve(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port.number());
        let flags = ["serve", "--listen", &listen, "--tokens", "tokens.toml", "--cookie-key", "cookie.key"];
        self.server = Some(self.world.start(&flags));
        wait_for("a server", || std::net::TcpStream::connect(&*listen).ok());
    }

    fn url(&self, page: &str) -> String {
        format!("http://127.0.0.1:{}/{page}", self.port.number())
    }

    /// Goes to a page within the dashboard.
    fn go(&self, page: &str, heading: &str) {
        self.browser.run("location.hash = arguments[0]", &[json!(page)]);
        self.browser.find("h1", heading);
    }

    /// Says yes to the question, which has this in it.
    fn confirm(&self, question: &str, act: &str) {
        self.browser.find("dialog[open] h2", question);
        self.browser.click("dialog[open] button.danger", act);
    }

    /// Holds a lock with a script until the world ends.
    fn hold(&self, flags: &[&str]) -> Child {
        let run = self.world.start_run(flags, "while :; do sleep 0.1; done");
        wait_for("a hold", || (self.holds(flags[0]) > 0).then_some(()));
        run
    }

    /// How many items wait in the queue `refunds`, and how many are dead.
    fn items(&self) -> (u64, u64) {
        let listed = self.world.output(&["queue", "ls", "--json"]);
        let queues: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        let count = |state: &str| queues[0][state].as_u64().unwrap_or_default();
        (count("waiting"), count("dead"))
    }

    /// What `tenure status` says of a lock.
    fn status(&self, name: &str) -> Value {
        let all = self.world.status();
        let one = all.as_array().into_iter().flatten().find(|one| one["resource"] == name);
        one.cloned().unwrap_or_default()
    }

    /// How many hold it, or have left it to rest.
    fn holds(&self, name: &str) -> usize {
        self.status(name)["holds"].as_array().map_or(0, Vec::len)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            signal(server.id(), Signal::KILL);
            finish(server);
        }
    }
}

const ALL: [&str; 5] = ["read", "operate", "payload", "push", "take"];

#[test]
fn an_operator_frees_locks_after_a_question() {
    let desk = Desk::open(redis::world(), &ALL);
    let run = desk.hold(&["billing/4711", "--ttl", "6s"]);
    desk.hold(&["report", "--ttl", "60s"]);
    let browser = &desk.browser;
    browser.click("nav a", "Locks");
    browser.enter("#prefix", "bill");
    browser.until("one lock", "return document.querySelectorAll('tbody tr').length === 1", &[]);
    browser.click("tbody a", "billing/4711");
    browser.find("h1", "billing/4711");
    browser.click("td button", "Free");
    browser.find("dialog[open] p", "Its work will be ended");
    browser.click("dialog[open] button", "Cancel");
    assert_eq!(desk.holds("billing/4711"), 1, "nobody has said yes");
    browser.click("td button", "Free");
    desk.confirm("Break the hold of billing/4711", "Break it");
    browser.find(".note.good", "The hold is broken");
    assert_eq!(code(&finish(run)), 76, "its work has learned of it");
    wait_for("a free lock", || (desk.holds("billing/4711") == 0).then_some(()));

    desk.go("#/lock?name=report", "report");
    browser.click("td button", "Free");
    browser.click("#ask-now", "");
    browser.find("dialog[open] p", "two may work at the same time");
    let danger = "return document.querySelector('dialog .danger').disabled";
    assert_eq!(browser.run(danger, &[]), true, "nobody has typed the digits");
    browser.enter("#ask-digits", "000");
    let token = desk.status("report")["holds"][0]["token"].to_string();
    browser.enter("#ask-digits", &format!("\u{E003}\u{E003}\u{E003}{}", &token[token.len() - 4..]));
    desk.confirm("Break the hold of report", "Break it");
    browser.find(".note.good", "The lock is free now");
    assert_eq!(desk.holds("report"), 0, "and it does not rest");
    desk.go("#/health", "Health");
    browser.find("tbody tr", "break");
    browser.find("caption", "by status");
    browser.find("tbody th", "200");
    desk.go("#/", "Overview");
    browser.find(".figures div", "Lost here0");
    // That nobody is signed in at first, and that a lock is free, are no complaints.
    let complaints = desk.browser.complaints();
    let others: Vec<_> = complaints.iter().filter(|line| !line.contains("Failed to load resource")).collect();
    assert!(others.is_empty(), "of scripts, and of what the policy refuses: {others:?}");
}

#[test]
fn an_operator_resizes_and_looks_at_slots() {
    let desk = Desk::open(redis::world(), &ALL);
    desk.hold(&["workers", "--slots", "3", "--ttl", "60s"]);
    desk.go("#/lock?name=workers", "workers");
    let taken = "return [...document.querySelectorAll('.slots li')].map((one) => one.dataset.is).join(' ') === arguments[0]";
    desk.browser.until("the slots", taken, &[json!("held free free")]);
    desk.browser.enter("#capacity", "5");
    desk.browser.click("form button", "Resize");
    desk.confirm("Resize workers", "Resize it");
    desk.browser.find(".note.good", "5 units");
    assert_eq!(desk.status("workers")["capacity"], 5);
    desk.browser.until("the new slots", taken, &[json!("held free free free free")]);
}

#[test]
fn an_operator_replays_and_purges_with_the_count_in_the_question() {
    let desk = Desk::open(redis::world(), &ALL);
    for item in ["order 1", "order 2", "order 3"] {
        assert_eq!(code(&desk.world.output(&["queue", "push", "refunds", item])), 0);
    }
    let worked = ["queue", "work", "refunds", "--max-attempts", "1", "--drain", "--", "false"];
    let worked = desk.world.output(&worked);
    assert_eq!(desk.items(), (0, 3), "{worked:?}");
    let browser = &desk.browser;
    browser.click("nav a", "Queues");
    browser.click("tbody a", "refunds");
    browser.click(".tabs a", "Dead letters");
    browser.click("tr:not(.gone) button", "Show");
    browser.find("tr pre", "order 1");
    browser.click("tr:not(.gone) button", "Replay");
    desk.confirm("Replay dead letter", "Replay");
    browser.find(".note.good", "1 dead letter went back");
    assert_eq!(desk.items(), (1, 2));
    browser.click("tr:not(.gone) button", "Purge");
    desk.confirm("Purge dead letter", "Purge");
    browser.find(".note.good", "1 dead letter removed");
    assert_eq!(desk.items(), (1, 1));
    browser.click("p.acts button", "Replay all");
    desk.confirm("Replay all 1 dead letter?", "Replay");
    wait_for("a replay", || (desk.items() == (2, 0)).then_some(()));
    browser.click(".tabs a", "Items");
    browser.until("two items", "return document.querySelectorAll('tbody tr').length === 2", &[]);
    browser.click("p.acts button", "Purge all");
    desk.confirm("Purge all 2 items that wait?", "Purge");
    browser.find(".note.good", "2 items removed");
    assert_eq!(desk.items(), (0, 0));
}

#[test]
fn who_may_only_look_is_offered_nothing_else() {
    let desk = Desk::open(redis::world(), &["read billing/"]);
    desk.hold(&["billing/4711", "--ttl", "60s"]);
    desk.hold(&["payroll", "--ttl", "60s"]);
    desk.go("#/locks", "Locks");
    desk.browser.find("tbody a", "billing/4711");
    assert_eq!(desk.browser.run("return document.querySelectorAll('tbody tr').length", &[]), 1);
    desk.go("#/lock?name=billing/4711", "billing/4711");
    desk.browser.find("caption", "1 hold");
    assert_eq!(desk.browser.run("return document.querySelectorAll('td button').length", &[]), 0);
    desk.browser.click("#sign-out", "");
    desk.browser.find("#token", "");
    desk.browser.open(&desk.url(""));
    desk.browser.find("#token", "");
}

/// Looks at each page with axe, as it is now.
fn look(desk: &Desk, where_: &str) {
    let script = "const run = axe.run(document, {resultTypes: ['violations']}); return run.then(({violations}) => \
                  violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ').slice(0, 400)}`))";
    let found = desk.browser.run(script, &[]);
    assert_eq!(found, json!([]), "{where_}");
}

#[test]
fn no_page_keeps_anybody_from_using_it() {
    let desk = Desk::closed(redis::world(), &ALL).served();
    desk.hold(&["billing/4711", "--ttl", "60s", "--label", "invoice"]);
    desk.hold(&["workers", "--slots", "3", "--ttl", "60s"]);
    assert_eq!(code(&desk.world.output(&["queue", "push", "refunds", "order 1"])), 0);
    desk.browser.open(&desk.url(""));
    desk.browser.find("#token", "");
    desk.browser.run(&format!("{}; window.axe = axe", foreign::axe()), &[]);
    look(&desk, "sign-in");
    desk.browser.prefer("prefers-color-scheme", "dark");
    look(&desk, "sign-in, dark");
    desk.sign_in();
    for scheme in ["light", "dark"] {
        desk.browser.prefer("prefers-color-scheme", scheme);
        for (page, heading, seen) in [
            ("#/", "Overview", "billing/4711"),
            ("#/locks", "Locks", "billing/4711"),
            ("#/lock?name=billing/4711", "billing/4711", "invoice"),
            ("#/lock?name=workers", "workers", "sh"),
            ("#/queues", "Queues", "refunds"),
            ("#/queue?name=refunds", "refunds", "Show"),
            ("#/queue?name=refunds&which=dead", "refunds", ""),
            ("#/health", "Health", "ops"),
        ] {
            desk.go(page, heading);
            desk.browser.find(if seen.is_empty() { ".table" } else { "tbody tr" }, seen);
            look(&desk, &format!("{page}, {scheme}"));
        }
        desk.go("#/lock?name=billing/4711", "billing/4711");
        desk.browser.click("td button", "Free");
        desk.browser.click("#ask-now", "");
        look(&desk, &format!("a question, {scheme}"));
        desk.browser.click("dialog[open] button", "Cancel");
    }
    desk.browser.resize(390, 800);
    desk.go("#/locks", "Locks");
    look(&desk, "narrow");
    let overflow = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    assert_eq!(desk.browser.run(overflow, &[]), true, "nothing is beside the window");
}

#[test]
fn a_name_is_text_wherever_it_is_shown() {
    let desk = Desk::open(redis::world(), &ALL);
    desk.hold(&[BAIT, "--ttl", "60s", "--label", BAIT]);
    assert_eq!(code(&desk.world.output(&["queue", "push", BAIT, BAIT, "--group", BAIT])), 0);
    let encoded: String = BAIT.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for (page, heading, seen) in [
        ("#/", "Overview", "tbody a"),
        ("#/locks", "Locks", "tbody a"),
        (&*format!("#/lock?name={encoded}"), BAIT, "tbody th"),
        ("#/queues", "Queues", "tbody a"),
        (&*format!("#/queue?name={encoded}"), BAIT, "tbody td"),
    ] {
        desk.go(page, heading);
        desk.browser.find(seen, BAIT);
        let made = "return document.querySelectorAll('main img').length || document.title === 'run'";
        assert_eq!(desk.browser.run(made, &[]), false, "{page}");
    }
    desk.browser.click("tr:not(.gone) button", "Show");
    desk.browser.find("tr pre", BAIT);
    desk.browser.click("tr:not(.gone) button", "Purge");
    desk.browser.find("dialog[open] p", BAIT);
    assert_eq!(desk.browser.run("return document.querySelectorAll('main img, dialog img').length", &[]), 0);
}

#[test]
fn a_page_of_elsewhere_changes_nothing_with_the_cookie_of_this_browser() {
    let desk = Desk::open(redis::world(), &ALL);
    desk.hold(&["a", "--ttl", "60s"]);
    let body = json!({"name": "a", "token": desk.status("a")["holds"][0]["token"], "now": true}).to_string();
    let send = "const [url, body, headers, mode] = arguments; \
                return fetch(url, {method: 'POST', body, headers, mode, credentials: 'include'}).then((it) => it.status, () => -1)";
    let url = json!(desk.url("v1/resource/break"));
    // Without the header the page of the dashboard itself changes nothing.
    let json_ = json!({"content-type": "application/json"});
    assert_eq!(desk.browser.run(send, &[url.clone(), json!(body), json_.clone(), json!("same-origin")]), 403);
    desk.browser.open("data:text/html,<p>elsewhere");
    let own = json!({"content-type": "application/json", "tenure-dashboard": "1"});
    assert_eq!(desk.browser.run(send, &[url.clone(), json!(body), own, json!("cors")]), -1, "it may not ask");
    let plain = json!({"content-type": "text/plain"});
    // What a form can send is sent, and not done: its answer is not shown to the page.
    let sent = desk.browser.run(send, &[url, json!(body), plain, json!("no-cors")]);
    assert!(sent == 0 || sent == -1, "{sent}");
    assert_eq!(desk.holds("a"), 1);
}

#[test]
fn ten_thousand_names_are_a_page_of_a_hundred_and_one_more_is_seen() {
    const NAMES: usize = 10_000;
    let desk = Desk::open(redis::world(), &ALL);
    let tenure = pollster::block_on(tenure::connect(&desk.world.engine())).expect("a store");
    let hold = |name: String| {
        let mutex = tenure.mutex(&name).ttl(Duration::from_secs(600));
        pollster::block_on(mutex.acquire()).expect("it is free")
    };
    let names: Vec<String> = (0..NAMES).map(|number| format!("many/{number:05}")).collect();
    let held: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = names
            .chunks(NAMES / 16)
            .map(|names| scope.spawn(|| names.iter().map(|name| hold(name.clone())).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("holds")).collect()
    });
    assert_eq!(held.len(), NAMES);
    let browser = &desk.browser;
    desk.go("#/locks", "Locks");
    browser.find("caption", "of 10,000 by name");
    let rows = "return document.querySelectorAll('tr').length";
    assert!(browser.run(rows, &[]).as_u64().is_some_and(|rows| (100..=150).contains(&rows)));
    browser.click(".pages a", "Next");
    browser.find("caption", "Locks 101 to 200");
    browser.find("tbody a", "many/00100");
    desk.go("#/locks?page=100", "Locks");
    browser.find("tbody a", "many/09999");
    desk.go("#/locks", "Locks");
    browser.find("tbody a", "many/00000");
    browser.find(".state", "Live");
    // When it is seen, the machine says: a look at 10,000 names that took a second is followed by a pause of twenty.
    let one_more = hold("a/first".to_owned());
    browser.find("tbody a", "a/first");
    browser.find("caption", "of 10,001");
    browser.enter("#holder", "nobody-has-this");
    browser.find(".none", "of 0");
    drop((held, one_more));
}

#[test]
fn a_server_that_was_killed_and_is_back_is_shown_as_it_is_by_the_same_page() {
    let mut desk = Desk::open(redis::world(), &ALL);
    desk.go("#/locks", "Locks");
    desk.browser.find(".state", "Live");
    let server = desk.server.take().expect("it runs");
    signal(server.id(), Signal::KILL);
    finish(server);
    desk.browser.find("#away", "the server does not answer");
    desk.browser.find(".state", "Not up to date");
    desk.hold(&["meanwhile", "--ttl", "60s"]);
    desk.serve();
    desk.browser.find("tbody a", "meanwhile");
    desk.browser.find(".state", "Live");
    let away = "return document.getElementById('away') === null";
    desk.browser.until("the end of the notice", away, &[]);
}

#[test]
fn what_changes_moves_neither_the_focus_nor_what_is_selected() {
    let desk = Desk::open(redis::world(), &ALL);
    desk.hold(&["m", "--ttl", "60s"]);
    desk.go("#/locks", "Locks");
    desk.browser.find("tbody a", "m");
    desk.browser.run("document.querySelector('tbody a').focus()", &[]);
    desk.hold(&["a", "--ttl", "60s"]);
    desk.browser.until("another row", "return document.querySelectorAll('tbody tr').length === 2", &[]);
    let focused = "return document.activeElement.textContent";
    assert_eq!(desk.browser.run(focused, &[]), "m");
    desk.browser.click("#pause", "");
    desk.browser.find(".state", "Paused");
    desk.hold(&["b", "--ttl", "60s"]);
    desk.browser.click("#pause", "");
    desk.browser.find("tbody a", "b");
    // By keys alone: the link to the content is the first, and Enter follows it.
    desk.browser.open(&desk.url("?anew#/queues"));
    desk.browser.find("h1", "Queues");
    desk.browser.press(TAB);
    assert_eq!(desk.browser.run(focused, &[]), "Skip to the content");
    desk.browser.press(ENTER);
    assert_eq!(desk.browser.run("return document.activeElement.id", &[]), "main");
}
