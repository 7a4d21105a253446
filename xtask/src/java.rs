//! `cargo xtask test --java`: builds and tests the client for Java and the starter for Spring Boot, has the suite for thin clients judge it, and breaks it on purpose.
//!
//! What a breakage is, [`clients`] says.

use std::path::Path;

use crate::clients::{self, Breakage};
use crate::run::{Outcome, Run};
use crate::setup;

/// Where the sources of the client are.
const SOURCES: &str = "java/tenure/src/main/java/dev/tenure";
/// It starts quickly, and needs little.
const JAVA: &str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx64m";

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
    if !run.programs() {
        return Ok(());
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
    clients::suite(run, &target, "thin clients", &[], &driver(&classes));
    for breakage in &BREAKAGES {
        let classes = broken(run, &of_java.join("broken"), &classes, breakage)?;
        clients::suite(run, &target, "broken client", &["--broken", breakage.case], &driver(&classes));
    }
    Ok(())
}

/// What the suite starts.
fn driver(classes: &str) -> Vec<String> {
    let words = ["java"].into_iter().chain(JAVA.split(' ')).chain(["-cp", classes, "dev.tenure.Driver"]);
    words.map(str::to_owned).collect()
}

/// Compiles what a breakage changes, to stand before the right classes.
fn broken(run: &mut Run, folder: &Path, right: &str, breakage: &Breakage) -> Outcome<String> {
    let source = clients::broken(&run.root().join(SOURCES), folder, breakage)?;
    let mut javac = run.program("javac");
    javac.args(["--release", "17", "-cp", right, "-d"]).arg(folder).arg(source);
    run.command("break the client", &mut javac);
    Ok(format!("{}:{right}", folder.display()))
}
