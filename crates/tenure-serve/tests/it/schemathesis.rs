//! The document by others' programs: one that knows OpenAPI, and one that asks a server at random by it, rightly and wrongly, and compares what
//! it answers.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::TestDirectory;
use tenure_testkit::foreign::python;

use crate::access::{Tokens, made};
use crate::http::{Serving, anywhere, now};

fn here(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn must_pass(what: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{what}: {said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_document_is_one_of_openapi() {
    let mut validator = python();
    validator.args(["-m", "openapi_spec_validator", "--errors", "all"]).arg(here("src/openapi.json"));
    must_pass("openapi-spec-validator", &validator.output().expect("python3"));
}

#[test]
fn the_server_does_what_the_document_says() {
    let verbs = ["claim", "read", "operate", "push", "take", "payload", "metrics"];
    let (secret, entry) = made("all", &verbs);
    let tokens = Tokens::new(&format!("{entry}rate = 100000\n"));
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let directory = TestDirectory::new();
    let began = now();
    let mut asking = python();
    asking
        .args(["-m", "schemathesis.cli", "--config-file"])
        .arg(here("tests/it/schemathesis/schemathesis.toml"));
    asking.args(["run", "--no-color", "--header", &format!("Authorization: Bearer {}", secret.token())]);
    asking.arg(format!("http://{}/v1/openapi.json", server.address));
    // It finds the hooks beside its settings, and writes what it remembers to where it is begun.
    asking.env("SCHEMATHESIS_HOOKS", here("tests/it/schemathesis/hooks.py")).current_dir(directory.path());
    must_pass("schemathesis", &asking.output().expect("python3"));
    assert_in_time(began.elapsed(), Duration::from_secs(60));
}
