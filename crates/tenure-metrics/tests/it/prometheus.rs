//! The rules and the dashboard, as Prometheus 2.42 reads them.

mod breakages;
mod redis;

use std::fs::File;
use std::future::IntoFuture;
use std::process::Command;
use std::time::Duration;

use pollster::block_on;
use tenure_core::Settings;
use tenure_core::survey::Surveyor;
use tenure_metrics::{Format, METRICS, RunFile, TextFile, render, render_store};
use tenure_testkit::TestDirectory;
use tenure_testkit::prometheus::promtool;

use crate::page::{client, work};
use crate::{dashboard, rules};

/// Runs a call of promtool to its end, which must be a good one.
fn passes(call: &mut Command) {
    let output = call.output().expect("promtool starts");
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{call:?}: {}\n{text}", output.status);
}

#[test]
fn the_rules_are_rules() {
    passes(promtool(&rules::place()).args(["check", "rules", "tenure.rules.yml"]));
}

#[test]
fn each_alert_fires_and_is_silent_in_its_cases() {
    passes(promtool(&rules::place()).args(["test", "rules", "tenure.rules.test.yml"]));
}

#[test]
fn the_expressions_of_the_dashboard_are_expressions() {
    let directory = TestDirectory::new();
    let record = |(number, expression): (usize, String)| {
        let lines: String = expression.lines().map(|line| format!("          {line}\n")).collect();
        format!("      - record: panel:{number}\n        expr: |\n{lines}")
    };
    let panels: String = dashboard::expressions().into_iter().enumerate().map(record).collect();
    let rules = format!("groups:\n  - name: dashboard\n    rules:\n{panels}");
    std::fs::write(directory.path().join("rules.yml"), rules).expect("a file");
    passes(promtool(directory.path()).args(["check", "rules", "rules.yml"]));
}

#[test]
fn the_configuration_of_the_guide_is_one() {
    let directory = TestDirectory::new();
    let guide = rules::text("../guides/watch-your-locks.md");
    let (_, block) = guide.split_once("\n```yaml\n").expect("there is a block");
    let (configuration, _) = block.split_once("```").expect("it ends");
    std::fs::write(directory.path().join("prometheus.yml"), configuration).expect("a file");
    std::fs::copy(rules::place().join("tenure.rules.yml"), directory.path().join("tenure.rules.yml"))
        .expect("a copy");
    passes(promtool(directory.path()).args(["check", "config", "prometheus.yml"]));
}

/// The expressions in the table of the guide, which stand between backticks at the end of a row.
#[test]
fn the_expressions_of_the_guide_are_those_that_we_render() {
    let (known, text) = (rules::known(), rules::text("../guides/which-lock-is-contended.md"));
    let rows = text.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit_once("| `"));
    let expressions: Vec<&str> = rows.map(|(_, expression)| expression).collect();
    assert!(expressions.len() > 4, "{expressions:?}");
    for expression in expressions {
        assert_eq!(known.unknown(expression), Vec::<String>::new(), "{expression}");
    }
}

#[test]
fn the_pages_keep_the_conventions_of_metrics() {
    let directory = TestDirectory::new();
    let (clock, _store, tenure) = client(Settings::new().counts(true));
    work(&clock, &tenure);
    let page = directory.path().join("page");
    std::fs::write(&page, render(&[tenure.counts()], Format::Prometheus)).expect("a file");
    let run = RunFile::new(directory.path(), "report");
    run.update(|run| run.last_exit_code = Some(0)).expect("a file");
    let _held = block_on(tenure.mutex("billing/4711").acquire()).expect("free");
    block_on(tenure.queue("refunds").push("two").into_future()).expect("pushed");
    let surveyor = Surveyor::new(&tenure);
    let survey = block_on(surveyor.latest()).expect("answers");
    let findings = block_on(tenure.check()).expect("answers");
    let counts = surveyor.count(&survey, &[]);
    let store = TextFile::new(directory.path(), "tenure_store.prom");
    let text = render_store(&counts, &findings, Duration::ZERO, Format::Prometheus);
    // Each of its rows is there, so each is checked.
    for metric in METRICS {
        let is_of_store =
            ["tenure_store_", "tenure_survey_"].iter().any(|start| metric.name.starts_with(start));
        let is_client = ["tenure_store_up", "tenure_store_forgot_total"].contains(&metric.name);
        assert!(
            !is_of_store || is_client || text.contains(&format!("\n{}{{", metric.name)),
            "{}",
            metric.name
        );
    }
    store.write(&text).expect("a file");
    for path in [page.as_path(), run.path(), store.path()] {
        let page = File::open(path).expect("it was written");
        passes(promtool(directory.path()).args(["check", "metrics"]).stdin(page));
    }
}
