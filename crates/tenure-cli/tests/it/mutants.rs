//! What breaks the product on purpose is in no program of ours.

#[test]
fn the_command_has_no_mutants() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_tenure")).expect("the command");
    let has = |text: &[u8]| program.windows(text.len()).any(|window| window == text);
    assert!(has(b"TENURE_ENGINE"), "the names of variables are found in it");
    assert!(!has(b"TENURE_MUTANT"), "it can be broken by a variable");
}
