//! A Prometheus that scrapes a process which loses its lease, with the rules as they are.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pollster::block_on;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_core::Settings;
use tenure_testkit::prometheus::PrometheusServer;
use tenure_testkit::redis::{Topology, shared};
use tenure_testkit::wait_for;

use super::{Program, connect};
use crate::rules;

/// Tells a process of this binary that it is to hold, and where.
const HOLDER: &str = "TENURE_METRICS_HOLDER";
const NAME: &str = "stopped/1";
const INTERVAL: Duration = Duration::from_secs(1);

/// Played by another process, see the next test.
#[test]
fn holder() {
    let Ok(url) = std::env::var(HOLDER) else { return };
    let program = Program::start(&url);
    let _lease = block_on(program.tenure.mutex(NAME).ttl(Duration::from_secs(2)).acquire()).expect("free");
    println!("\nport {}", program.port());
    // It ends with who started it.
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
}

struct Holder(Child);

impl Holder {
    fn start(url: &str) -> (Holder, u16) {
        let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
        command.args(["prometheus::redis::scraped::holder", "--exact", "--nocapture"]).env(HOLDER, url);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a holder starts");
        let mut holder = Holder(child);
        let lines = BufReader::new(holder.0.stdout.take().expect("it was asked for")).lines();
        let port = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("port ")?.parse().ok());
        (holder, port.expect("it holds"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("a child that was not waited for");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
        self.0.wait().expect("a killed child ends");
    }
}

/// The samples of the series of an expression with a range, and when each was taken.
fn samples(prometheus: &PrometheusServer, expression: &str) -> Option<Vec<(f64, f64)>> {
    let answer: Value = serde_json::from_str(&prometheus.query(expression)?).expect("JSON");
    let series = answer["data"]["result"].as_array().expect("series");
    let samples = series.iter().flat_map(|series| series["values"].as_array().expect("samples").iter());
    let sample = |sample: &Value| Some((sample[0].as_f64()?, sample[1].as_str()?.parse().ok()?));
    Some(samples.filter_map(sample).collect())
}

#[test]
fn a_lease_that_a_stopped_process_loses_is_told_within_two_scrapes() {
    let url = shared(Topology::Single);
    let (holder, port) = Holder::start(&url);
    let rules = rules::place().join("tenure.rules.yml");
    let prometheus = PrometheusServer::start(INTERVAL, &[port], &[rules]);
    let lost = r#"tenure_leases_lost_total{scope="stopped/*", reason=~"deadline|late"}[5m]"#;
    wait_for("scrape", || samples(&prometheus, lost).filter(|samples| !samples.is_empty()));
    holder.signal(Signal::STOP);
    // Another client can be granted it: the lease is over.
    let next = connect(&url, Settings::new());
    drop(
        block_on(next.mutex(NAME).acquire_within(Duration::from_secs(20))).expect("it is free after the ttl"),
    );
    holder.signal(Signal::CONT);
    let alert = r#"ALERTS{alertname="TenureLeaseLost", scope="stopped/*", severity="warning"}[5m]"#;
    let told = wait_for("alert", || samples(&prometheus, alert).filter(|samples| !samples.is_empty()));
    let scrapes = samples(&prometheus, lost).expect("it answers");
    let seen = scrapes.iter().filter(|(at, lost)| *lost > 0.0 && *at < told[0].0).count();
    assert!((1..=2).contains(&seen), "{seen} scrapes saw it before: {scrapes:?}, {told:?}");
    assert!(scrapes.iter().any(|(_, lost)| *lost == 0.0), "and one saw that it held: {scrapes:?}");
}
