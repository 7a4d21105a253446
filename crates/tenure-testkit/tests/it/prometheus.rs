//! Prometheus.

use std::time::Duration;

use tenure_testkit::prometheus::{PrometheusServer, promtool};
use tenure_testkit::{TestDirectory, is_alive, wait_for};

#[test]
fn a_server_scrapes_what_it_is_told_to_judges_it_and_leaves_no_process() {
    let directory = TestDirectory::new();
    let rules = directory.path().join("rules.yml");
    let rule = "groups: [{name: g, rules: [{record: twice, expr: 2 * up}, {alert: Gone, expr: up == 0}]}]";
    std::fs::write(&rules, rule).unwrap();
    let checked = promtool(directory.path()).args(["check", "rules", "rules.yml"]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    // Nobody listens there.
    let server = PrometheusServer::start(Duration::from_millis(200), &[1], &[rules]);
    assert!(server.port() >= 20_000);
    wait_for("a sample", || server.query("twice")?.contains(r#","0"]"#).then_some(()));
    wait_for("an alert", || server.query(r#"ALERTS{alertname="Gone"}"#)?.contains("firing").then_some(()));
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    drop(server);
    assert!(!is_alive(pid) && !directory.parent().unwrap().exists());
}
