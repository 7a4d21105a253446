//! What a program shows of what it has from here, in its own `Debug` and when a test fails.

use pollster::block_on;
use tenure_core::{Queue, SlotPool, Tenure, blocking};

#[derive(Debug)]
#[expect(dead_code, reason = "only shown")]
struct App {
    tenure: Tenure,
    pool: SlotPool,
    jobs: Queue,
    sync: blocking::Mutex,
}

#[test]
fn a_program_derives_debug_around_a_client_and_what_it_names() {
    let tenure = block_on(tenure_core::memory::connect("shown")).expect("connects");
    let (pool, jobs) = (tenure.slot_pool("ids", 4), tenure.queue("jobs"));
    let sync = blocking::Tenure::from(tenure.clone()).mutex("");
    let shown = format!("{:?}", App { tenure, pool, jobs, sync });
    assert!(
        shown.starts_with(
            r#"App { tenure: Tenure { engine: "memory", .. }, pool: SlotPool { name: "ids", engine: "memory", .. }, "#
        ),
        "{shown}"
    );
    assert!(
        shown.contains(r#"jobs: Queue { name: "jobs", engine: "memory", .. }, sync: Mutex { name: "#),
        "{shown}"
    );
}

#[test]
fn what_is_pushed_is_not_shown() {
    let tenure = block_on(tenure_core::memory::connect("shown")).expect("connects");
    let push = tenure.queue("jobs").push("a password");
    assert_eq!(format!("{push:?}"), r#"Push { name: "jobs", engine: "memory", .. }"#);
}
