//! Programs of others under their own locks, beside a mutex of ours, on one server and on several.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_conformance::crew::pause;
use tenure_core::Tenure;
use tenure_testkit::Reply;
use tenure_testkit::redis::RedisServer;

/// Lets a program of others and a mutex of ours take turns, and counts who meets whom inside: the first server does.
pub(crate) fn take_turns_on(servers: &[RedisServer], client: &Tenure, mut program: Command, script: &str) {
    const ROUNDS: usize = 60;
    let server = &servers[0];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure-redis/tests/foreign").join(script);
    let ports: Vec<String> = servers.iter().map(|server| server.port().to_string()).collect();
    let (ports, rounds) = (ports.join(","), ROUNDS.to_string());
    program.arg(script).args([&ports, "locks:shared", &rounds]).stdin(Stdio::null());
    let mut other = program.stdout(Stdio::piped()).spawn().expect("`cargo xtask setup` installs it");
    let mutex = client.mutex("shared");
    let (mut ours, mut intruders) = (0, 0);
    while other.try_wait().expect("a child").is_none() {
        let lease =
            pollster::block_on(mutex.acquire_within(Duration::from_secs(20))).expect("its turn comes");
        intruders += usize::from(server.ask(&["INCR", "inside"]) != Reply::Integer(1));
        pause(Duration::from_millis(2));
        intruders += usize::from(server.ask(&["DECR", "inside"]) != Reply::Integer(0));
        pollster::block_on(lease.release()).expect("a release is answered");
        ours += 1;
        pause(Duration::from_millis(3));
    }
    let output = other.wait_with_output().expect("a child");
    assert!(output.status.success(), "`cargo xtask setup` installs what it needs: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "it met ours inside");
    assert_eq!(intruders, 0, "ours met it inside");
    assert!(ours > ROUNDS / 4, "ours had its turns too: {ours}");
}
