//! The tool itself: a short soak of the engine that needs no server.

use std::process::Command;

#[test]
fn a_short_soak_on_one_machine_is_good() {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-chaos"))
        .args(["soak", "local", "--seconds", "2", "--seed", "1", "--clients", "3"])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("local, seed 1: good"), "{said}");
}
