//! A browser without a window: Chromium, driven by the WebDriver protocol (W3C), which is JSON over HTTP.
//!
//! Spoken by hand, as the requests that Prometheus is asked by: the ten commands that tests need are a hundred lines. The crate `thirtyfour`
//! is a hundred crates more for every run of the tests, `fantoccini` brings one under a licence that is not on our list, and selenium would
//! have the tests in another language than the servers that they start.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::{Port, Server, Site};

use crate::world::wait_for;

/// How long an answer may take on a machine that may be busy.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// How WebDriver names an element in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The flags of Chromium. Root has no sandbox; a container has little shared memory; nothing is asked of anybody but the test's server.
const FLAGS: [&str; 9] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",
];

/// A browser with one window. It ends with this value.
#[derive(Debug)]
pub(crate) struct Browser {
    driver: Server,
    port: Port,
    session: String,
}

impl Browser {
    /// Starts one, with a profile of its own and a window of this size. The package `chromium-driver` brings it.
    pub(crate) fn start(width: u32, height: u32) -> Browser {
        let port = Port::free();
        let driver = Server::start(&Site::new(), &format!("browser-{}", port.number()), |directory| {
            // Whatever ends the test: a driver that is asked to end ends its browser.
            std::fs::write(directory.join("ends-by"), "TERM\n").expect("a file");
            let mut command = Command::new("chromedriver");
            command.arg(format!("--port={}", port.number())).env("HOME", directory).current_dir(directory);
            command
        });
        let mut browser = Browser { driver, port, session: String::new() };
        browser.driver.wait_for("readiness", || {
            browser.try_ask("GET", "/status", &Value::Null).filter(|answer| answer["ready"] == true)
        });
        let profile = format!("--user-data-dir={}", browser.driver.directory().join("profile").display());
        let size = format!("--window-size={width},{height}");
        let flags: Vec<&str> = FLAGS.into_iter().chain([&*profile, &*size]).collect();
        let wanted = json!({"browserName": "chrome", "goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}});
        let made = browser.ask("POST", "/session", &json!({"capabilities": {"alwaysMatch": wanted}}));
        browser.session = format!("/session/{}", made["sessionId"].as_str().expect("an id"));
        browser
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).ok()?;
        stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).ok()?;
        // The driver keeps the connection, whatever it is asked.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).ok()?;
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().ok()?;
                }
                None if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).ok()?;
        Some(serde_json::from_slice::<Value>(&body).ok()?["value"].take())
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_ask(method, path, body);
        let answer = answer.unwrap_or_else(|| panic!("{method} {path}: no answer\n{}", self.driver.log()));
        assert!(answer.get("error").is_none(), "{method} {path}: {answer}");
        answer
    }

    fn of_session(&self, method: &str, command: &str, body: &Value) -> Value {
        self.ask(method, &format!("{}{command}", self.session), body)
    }

    /// Goes to an address, and returns when its document is there.
    pub(crate) fn open(&self, url: &str) {
        self.of_session("POST", "/url", &json!({"url": url}));
    }

    /// Runs a script in the page, which may `return` something or a promise of it.
    pub(crate) fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.of_session("POST", "/execute/sync", &json!({"script": script, "args": arguments}))
    }

    /// Waits until a script returns what is neither null nor false.
    pub(crate) fn until(&self, what: &str, script: &str, arguments: &[Value]) -> Value {
        wait_for(what, || Some(self.run(script, arguments)).filter(|it| !it.is_null() && *it != false))
    }

    /// Waits until the page has an element that is visible and has a text (an empty one is in all), and returns its id.
    pub(crate) fn find(&self, selector: &str, text: &str) -> Value {
        let script = "return [...document.querySelectorAll(arguments[0])].find(\
                      one => one.checkVisibility() && !one.disabled && one.textContent.includes(arguments[1])) ?? null";
        self.until(&format!("{selector} with {text:?}"), script, &[json!(selector), json!(text)])
    }

    fn on_element(&self, element: &Value, act: &str, body: &Value) {
        let id = element[ELEMENT].as_str().expect("an element");
        self.of_session("POST", &format!("/element/{id}/{act}"), body);
    }

    /// Clicks on what is there, once it is.
    pub(crate) fn click(&self, selector: &str, text: &str) {
        self.on_element(&self.find(selector, text), "click", &json!({}));
    }

    /// Types into a field, once it is there.
    pub(crate) fn enter(&self, selector: &str, text: &str) {
        self.on_element(&self.find(selector, ""), "value", &json!({"text": text}));
    }

    /// Presses a key of the whole page: WebDriver's code of it, `\u{E004}` for Tab.
    pub(crate) fn press(&self, key: &str) {
        let keys = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        self.of_session(
            "POST",
            "/actions",
            &json!({"actions": [{"type": "key", "id": "keys", "actions": keys}]}),
        );
    }

    /// Has pages believe that their reader prefers this: `prefers-color-scheme`, `dark`.
    pub(crate) fn prefer(&self, feature: &str, value: &str) {
        let features = json!({"features": [{"name": feature, "value": value}]});
        let command = json!({"cmd": "Emulation.setEmulatedMedia", "params": features});
        self.of_session("POST", "/goog/cdp/execute", &command);
    }

    /// Sets the size of the window.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.of_session("POST", "/window/rect", &json!({"width": width, "height": height}));
    }

    /// Returns what the page has complained of since the last call: errors of scripts, and what its policy refused.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.of_session("POST", "/se/log", &json!({"type": "browser"}));
        let severe = log.as_array().into_iter().flatten().filter(|line| line["level"] == "SEVERE");
        severe.filter_map(|line| line["message"].as_str().map(str::to_owned)).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends the browser. If it cannot be asked, the end of its driver does.
        self.try_ask("DELETE", &self.session, &Value::Null);
    }
}
