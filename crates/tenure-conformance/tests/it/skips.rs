//! A check that does not apply to an engine says so where somebody counts.

use std::process::Command;

use crate::broken_setup::{Breakage, Broken};

/// The variable that names the file of skips (see the crate's documentation).
const SKIPS: &str = "TENURE_CONFORMANCE_SKIPS";

#[test]
fn a_skip_is_printed_past_the_harness_and_counted_in_a_file() {
    if std::env::var_os(SKIPS).is_some_and(|path| path.to_string_lossy().contains("of-a-test-of-skips")) {
        let narrow = Broken::new(Breakage::OnlyMutexes);
        tenure_conformance::run(module_path!(), tenure_conformance::rw_lock::readers_share(&narrow));
        tenure_conformance::run(module_path!(), tenure_conformance::mutex::a_try_does_not_queue(&narrow));
        return;
    }
    let path = std::env::temp_dir().join(format!("of-a-test-of-skips-{}", std::process::id()));
    let program = std::env::current_exe().expect("a test binary has a path");
    let name = "skips::a_skip_is_printed_past_the_harness_and_counted_in_a_file";
    let output = Command::new(program).args([name, "--exact"]).env(SKIPS, &path).output();
    let output = output.expect("the test binary executes itself");
    let skips = std::fs::read_to_string(&path).expect("the skip was counted");
    std::fs::remove_file(&path).expect("the file of skips can be removed");
    let skip = "skipped rw_lock::readers_share: the engine has no read-write locks\n";
    assert_eq!(skips, skip, "one of the two checks does not apply");
    assert!(String::from_utf8_lossy(&output.stderr).contains(skip), "{output:?}");
}
