//! `cargo xtask test --clients`: tests the thin clients that are one file each, has the suite for thin clients judge them, and breaks them on purpose.
//!
//! A breakage changes one place of a client; the case that it names must fail then. So no case passes because it looks at nothing. The client
//! for Java ([`java`](crate::java)) is judged by the same suite, and broken in the same way.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Outcome, Run};
use crate::setup;

/// A client that is wrong in one place.
pub(crate) struct Breakage {
    /// The case that finds it.
    pub(crate) case: &'static str,
    pub(crate) file: &'static str,
    /// What stands there, once.
    pub(crate) right: &'static str,
    pub(crate) wrong: &'static str,
}

/// A client of one file.
struct Client {
    name: &'static str,
    file: &'static str,
    /// What runs its programs.
    program: &'static str,
    /// Takes the client's file, and then what the suite says.
    driver: &'static str,
    /// Its own tests, with the arguments before them.
    tests: &'static [&'static str],
    breakages: &'static [Breakage],
}

const NODE: &str = "clients/node/tenure.mjs";
const PHP: &str = "clients/php/Tenure.php";

const CLIENTS: [Client; 2] = [
    Client {
        name: "node",
        file: NODE,
        program: "node",
        driver: "clients/node/driver.mjs",
        tests: &["--test", "clients/node/test.mjs"],
        breakages: &[
            // It counts its deadlines from when the answer came.
            Breakage {
                case: "a_deadline_counts_from_sending_the_claim",
                file: NODE,
                right: "resolve(Api.#reply(response, Buffer.concat(parts).toString('utf8'), sent));",
                wrong: "resolve(Api.#reply(response, Buffer.concat(parts).toString('utf8'), clock.now()));",
            },
            Breakage {
                case: "a_deadline_counts_from_sending_the_renewal",
                file: NODE,
                right: "resolve(Api.#reply(response, Buffer.concat(parts).toString('utf8'), sent));",
                wrong: "resolve(Api.#reply(response, Buffer.concat(parts).toString('utf8'), clock.now()));",
            },
            // It waits until it is told of a loss.
            Breakage {
                case: "a_client_that_was_paused_knows_that_it_lost",
                file: NODE,
                right: "this.#state === 'held' && clock.now() >= this.#deadline",
                wrong: "this.#deadline < 0",
            },
            // It takes another id for each request.
            Breakage {
                case: "a_claim_whose_answer_is_lost_is_granted_once",
                file: NODE,
                right: "const body = this.#body({ poll_ms: pollMs });",
                wrong: "this.#id = newId(); const body = this.#body({ poll_ms: pollMs });",
            },
            // It believes half of an answer.
            Breakage {
                case: "the_answer_to_another_is_no_grant",
                file: NODE,
                right: "json?.state !== 'granted' || json.claim !== this.#id ||",
                wrong: "json?.state !== 'granted' ||",
            },
        ],
    },
    Client {
        name: "php",
        file: PHP,
        program: "php",
        driver: "clients/php/driver.php",
        tests: &["clients/php/test.php"],
        breakages: &[
            Breakage {
                case: "a_deadline_counts_from_sending_the_claim",
                file: PHP,
                right: "curl_multi_getcontent($request), $headers, $sent);",
                wrong: "curl_multi_getcontent($request), $headers, Clock::now());",
            },
            Breakage {
                case: "a_deadline_counts_from_sending_the_renewal",
                file: PHP,
                right: "curl_multi_getcontent($request), $headers, $sent);",
                wrong: "curl_multi_getcontent($request), $headers, Clock::now());",
            },
            Breakage {
                case: "a_client_that_was_paused_knows_that_it_lost",
                file: PHP,
                right: "$this->state === 'held' && Clock::now() >= $this->deadline",
                wrong: "$this->deadline < 0",
            },
            Breakage {
                case: "a_claim_whose_answer_is_lost_is_granted_once",
                file: PHP,
                right: "$this->isSent = true;\n            $this->hasAsked = true;",
                wrong: "$this->id = bin2hex(random_bytes(16)); $this->isSent = true;\n            $this->hasAsked = true;",
            },
            // It ends, and leaves what it held.
            Breakage {
                case: "a_program_that_ends_releases",
                file: PHP,
                right: "register_shutdown_function(fn () => $this->shutdown());",
                wrong: "",
            },
        ],
    },
];

/// Tests, judges, and breaks.
pub(crate) fn tests(run: &mut Run) -> Outcome<()> {
    setup::need(run, &setup::FOR_CLIENTS)?;
    let target = run.target()?;
    if !run.programs() {
        return Ok(());
    }
    for client in &CLIENTS {
        let mut tests = run.program(client.program);
        tests.args(client.tests).env("TENURE_TEST_COMMAND", target.join("debug/tenure"));
        run.command(&format!("{} tests", client.name), &mut tests);
        let root = run.root().to_owned();
        let driver = |file: &Path| {
            let [driver, file] =
                [&root.join(client.driver), file].map(|path| path.to_string_lossy().into_owned());
            vec![client.program.to_owned(), driver, file]
        };
        suite(run, &target, &format!("{} client", client.name), &[], &driver(&root.join(client.file)));
        for breakage in client.breakages {
            let file = broken(&root, &target.join("clients").join(client.name), breakage)?;
            let step = format!("broken {} client", client.name);
            suite(run, &target, &step, &["--broken", breakage.case], &driver(&file));
        }
    }
    Ok(())
}

/// Has the suite judge a client behind its driver.
pub(crate) fn suite(run: &mut Run, target: &Path, step: &str, arguments: &[&str], driver: &[String]) {
    let mut suite = run.program(&target.join("debug/examples/thin_clients").to_string_lossy());
    suite.arg(target.join("debug/tenure")).args(arguments).arg("--").args(driver);
    run.command(step, &mut suite);
}

/// Writes the file that a breakage changes into a folder, and returns its path.
pub(crate) fn broken(sources: &Path, folder: &Path, breakage: &Breakage) -> Outcome<PathBuf> {
    let failed = |error: std::io::Error| format!("cannot break {}: {error}", breakage.file);
    let text = fs::read_to_string(sources.join(breakage.file)).map_err(failed)?;
    if text.matches(breakage.right).count() != 1 {
        return Err(format!("{} does not say once: {}", breakage.file, breakage.right));
    }
    // What an earlier breakage left; there may be nothing.
    fs::remove_dir_all(folder).ok();
    fs::create_dir_all(folder).map_err(failed)?;
    let name = Path::new(breakage.file).file_name().ok_or("a breakage has no file")?;
    let file = folder.join(name);
    fs::write(&file, text.replace(breakage.right, breakage.wrong)).map_err(failed)?;
    Ok(file)
}
