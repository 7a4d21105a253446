//! The file that a short run leaves behind.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_metrics::RunFile;

/// A directory of its own, which is removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("tenure-run-file-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

#[test]
fn a_run_that_was_busy_keeps_the_last_success() {
    let directory = Directory::new("busy");
    let file = RunFile::new(&directory.0, "nightly/report");
    assert!(file.path().ends_with("tenure_run_nightly_2freport.prom"));
    file.update(|run| {
        run.last_start = Some(at(100));
        run.expected = Some(Duration::from_secs(26 * 3600));
    })
    .expect("written");
    let holding = file.hold(|_| {}).expect("written");
    assert!(file.read().is_running);
    drop(holding);
    file.update(|run| {
        (run.last_success, run.last_exit_code) = (Some(at(160)), Some(0));
        (run.last_wait, run.last_hold) = (Some(Duration::from_millis(500)), Some(Duration::from_secs(60)));
    })
    .expect("written");
    file.update(|run| run.last_busy = Some(at(200))).expect("written");
    let text = std::fs::read_to_string(file.path()).expect("it is there");
    for line in [
        r#"tenure_run_running{name="nightly/report"} 0"#,
        r#"tenure_run_last_start_timestamp_seconds{name="nightly/report"} 100"#,
        r#"tenure_run_last_success_timestamp_seconds{name="nightly/report"} 160"#,
        r#"tenure_run_last_busy_timestamp_seconds{name="nightly/report"} 200"#,
        r#"tenure_run_last_exit_code{name="nightly/report"} 0"#,
        r#"tenure_run_last_wait_seconds{name="nightly/report"} 0.5"#,
        r#"tenure_run_last_hold_seconds{name="nightly/report"} 60"#,
        r#"tenure_run_expected_seconds{name="nightly/report"} 93600"#,
    ] {
        assert!(text.lines().any(|has| has == line), "{line} is not in\n{text}");
    }
}

#[test]
fn runs_that_end_together_lose_nothing_and_a_reader_sees_whole_pages() {
    let directory = Directory::new("together");
    let file = RunFile::new(&directory.0, "job");
    file.update(|_| {}).expect("written");
    std::thread::scope(|scope| {
        for n in 1..=8 {
            let file = &file;
            scope.spawn(move || {
                for m in 0..20 {
                    file.update(|run| run.last_success = Some(at(n * 100 + m))).expect("written");
                    let text = std::fs::read_to_string(file.path()).expect("always there");
                    assert!(text.starts_with("# HELP") && text.ends_with('\n'), "{text}");
                }
            });
        }
    });
    assert_eq!(file.read().last_success, Some(at(819)), "the last success never goes back");
}

#[test]
fn no_two_names_have_one_file() {
    let directory = Directory::new("names");
    let long = "x".repeat(255);
    let names = ["a/b", "a_2fb", "a:b", "a b", &long, &format!("{}y", "x".repeat(254))];
    let paths: std::collections::BTreeSet<_> =
        names.iter().map(|name| RunFile::new(&directory.0, name).path().to_owned()).collect();
    assert_eq!(paths.len(), names.len());
}

#[test]
fn it_runs_while_one_of_those_that_share_the_lock_does() {
    let directory = Directory::new("shared");
    let file = RunFile::new(&directory.0, "job");
    let (one, other) = (file.hold(|_| {}).expect("written"), file.hold(|_| {}).expect("written"));
    drop(one);
    file.update(|run| run.is_running = false).expect("written");
    assert!(file.read().is_running, "the other one still runs");
    drop(other);
    file.update(|run| run.is_running = true).expect("written");
    assert!(!file.read().is_running, "whatever it was told");
}

#[test]
fn a_success_of_a_clock_that_was_wrong_does_not_hide_what_comes_later() {
    let directory = Directory::new("clock");
    let file = RunFile::new(&directory.0, "job");
    for (told, known) in [(9_000, 9_000), (8_999, 9_000), (5_000, 5_000), (5_001, 5_001)] {
        file.update(|run| run.last_success = Some(at(told))).expect("written");
        assert_eq!(file.read().last_success, Some(at(known)), "after {told}");
    }
}

#[test]
fn another_user_may_read_it_whatever_the_umask_is() {
    let directory = Directory::new("umask");
    let file = RunFile::new(&directory.0, "job");
    // The umask belongs to the process, which has other tests: what a writer left behind that was killed has no rights here.
    std::fs::write(directory.0.join("tenure_run_job.prom.new"), "half a pa").expect("a file");
    std::fs::set_permissions(
        directory.0.join("tenure_run_job.prom.new"),
        std::os::unix::fs::PermissionsExt::from_mode(0o000),
    )
    .expect("set");
    file.update(|_| {}).expect("written");
    let mode = std::fs::metadata(file.path()).expect("it is there").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o644);
}
