//! `cargo xtask test --java`: builds and tests the client for Java and the starter for Spring Boot, has the suite for thin clients judge it, and breaks it on purpose.
//!
//! A breakage changes one place of the client; the case that it names must fail then. So no case passes because it looks at nothing.

use std::fs;
use std::path::Path;

use crate::run::{Outcome, Run};
use crate::setup;

/// Where the sources of the client are.
const SOURCES: &str = "java/tenure/src/main/java/dev/tenure";
/// It starts quickly, and needs little.
const JAVA: &str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx64m";

/// A client that is wrong in one place.
struct Breakage {
    /// The case that finds it.
    case: &'static str,
    file: &'static str,
    /// What stands there, once.
    right: &'static str,
    wrong: &'static str,
}

const BREAKAGES: [Breakage; 8] = [
    // It counts its deadline from when the answer came.
    Breakage {
        case: "a_deadline_counts_from_sending_the_claim",
        file: "Api.java",
        right: "return reply(answer, sent);",
        wrong: "return reply(answer, clock.now());",
    },
    Breakage {
        case: "a_deadline_counts_from_sending_the_renewal",
        file: "Api.java",
        right: "then.accept(reply(answer, sent), null);",
        wrong: "then.accept(reply(answer, clock.now()), null);",
    },
    // It waits until it is told of a loss.
    Breakage {
        case: "a_client_that_was_paused_knows_that_it_lost",
        file: "Hold.java",
        right: "state == State.HELD && clock.now() >= deadline",
        wrong: "deadline < 0",
    },
    // It takes another id for each request.
    Breakage {
        case: "a_claim_whose_answer_is_lost_is_granted_once",
        file: "TenureLock.java",
        right: "Transport.Request request = request(poll);",
        wrong: "id = Api.newId(); Transport.Request request = request(poll);",
    },
    // It believes whatever says "granted".
    Breakage {
        case: "the_answer_to_another_is_no_grant",
        file: "TenureLock.java",
        right: "!\"granted\".equals(fields.get(\"state\")) || !id.equals(fields.get(\"claim\"))",
        wrong: "!\"granted\".equals(fields.get(\"state\"))",
    },
    // It does not repeat a release.
    Breakage {
        case: "a_release_whose_answer_is_lost_is_done",
        file: "Tenure.java",
        right: "api.repeat(release(hold.name, hold.claim), hold.name, RELEASE_MAX.toNanos())",
        wrong: "api.once(release(hold.name, hold.claim), RELEASE_MAX)",
    },
    // It does not read `Retry-After`.
    Breakage {
        case: "a_503_is_repeated_when_it_says",
        file: "Api.java",
        right: "Math.max(pause, unanswered == null ? 0 : unanswered.retryAfter())",
        wrong: "pause",
    },
    // It repeats a push that the store cannot know again.
    Breakage {
        case: "a_push_whose_answer_is_lost_is_in_line_once",
        file: "TenureQueue.java",
        right: "\"dedup\", dedup,",
        wrong: "\"dedup\", push.dedup(),",
    },
];

/// Builds, tests, and breaks. If it may take long, two instances of an application are disturbed for two minutes, and not for 20 s.
pub(crate) fn tests(run: &mut Run, is_long: bool) -> Outcome<()> {
    setup::need(run, &setup::FOR_JAVA)?;
    let target = run.target()?;
    let of_java = target.join("java");
    for build in
        ["build --package tenure-cli --bin tenure", "build --package tenure-testkit --example thin_clients"]
    {
        if !run.command("the command and the suite", &mut run.cargo(build)) {
            return Ok(());
        }
    }
    let mut maven = run.program("mvn");
    // Every plugin and dependency has its version, so Maven asks the network for nothing that it has.
    maven
        .args(["--quiet", "--batch-mode", "--file", "java"])
        .arg(format!("-Dtenure.target={}", of_java.display()))
        .arg(format!("-Dtenure.long={is_long}"));
    maven.env("TENURE_TEST_COMMAND", target.join("debug/tenure"));
    if !run.command("java tests", maven.arg("verify")) {
        return Ok(());
    }
    let classes = format!("{0}/tenure/classes:{0}/tenure/test-classes", of_java.display());
    suite(run, &target, "thin clients", &[], &classes);
    for breakage in &BREAKAGES {
        let classes = broken(run, &of_java.join("broken"), &classes, breakage)?;
        suite(run, &target, "broken client", &["--broken", breakage.case], &classes);
    }
    Ok(())
}

/// Has the suite judge what these classes are.
fn suite(run: &mut Run, target: &Path, step: &str, arguments: &[&str], classes: &str) {
    let mut suite = run.program(&target.join("debug/examples/thin_clients").to_string_lossy());
    suite.arg(target.join("debug/tenure")).args(arguments).args(["--", "java"]).args(JAVA.split(' '));
    run.command(step, suite.args(["-cp", classes, "dev.tenure.Driver"]));
}

/// Compiles what a breakage changes, to stand before the right classes.
fn broken(run: &mut Run, folder: &Path, right: &str, breakage: &Breakage) -> Outcome<String> {
    let failed = |error: std::io::Error| format!("cannot break {}: {error}", breakage.file);
    let text = fs::read_to_string(run.root().join(SOURCES).join(breakage.file)).map_err(failed)?;
    if text.matches(breakage.right).count() != 1 {
        return Err(format!("{} does not say once: {}", breakage.file, breakage.right));
    }
    // What an earlier breakage left; there may be nothing.
    fs::remove_dir_all(folder).ok();
    fs::create_dir_all(folder).map_err(failed)?;
    let source = folder.join(breakage.file);
    fs::write(&source, text.replace(breakage.right, breakage.wrong)).map_err(failed)?;
    let mut javac = run.program("javac");
    javac.args(["--release", "17", "-cp", right, "-d"]).arg(folder).arg(source);
    run.command("break the client", &mut javac);
    Ok(format!("{}:{right}", folder.display()))
}
