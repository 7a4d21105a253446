//! The page: each row is a number of the client's, and has its line in the documents.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pollster::block_on;
use tenure_core::memory::Store;
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{Error, Settings, Tenure};
use tenure_metrics::{Format, HttpCounts, METRICS, Page, render};

const SECOND: Duration = Duration::from_secs(1);

/// A client that counts, on a clock that stands.
pub(crate) fn client(settings: Settings) -> (VirtualClock, Arc<Store>, Tenure) {
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let connecting = Tenure::start(store.clone().connector(), Arc::new(clock.clone()), settings);
    (clock, store, block_on(connecting).expect("connects"))
}

/// Something of each sort: what is asked for here is what the page says below.
pub(crate) fn work(clock: &VirtualClock, tenure: &Tenure) {
    let mutex = tenure.mutex("billing/4711");
    let lease = block_on(mutex.acquire()).expect("free");
    assert!(block_on(mutex.try_acquire()).expect("answers").is_none());
    clock.advance(2 * SECOND);
    block_on(lease.release()).expect("answers");
    let price = tenure.single_flight("price/1");
    let load = async |_: &tenure_core::Lease| {
        clock.advance(SECOND);
        Ok::<_, Error>(b"17.50".to_vec())
    };
    block_on(price.get_or_refresh(load)).expect("loaded");
    block_on(price.get_or_refresh(load)).expect("fresh");
    let queue = tenure.queue("refunds");
    block_on(queue.push("one").dedup("one").into_future()).expect("pushed");
    block_on(queue.push("one").dedup("one").into_future()).expect("a duplicate");
    let delivery = block_on(queue.next()).expect("there is one");
    clock.advance(SECOND);
    block_on(delivery.ack()).expect("done");
}

/// A lease that is detached, attached and broken.
pub(crate) fn lose(clock: &VirtualClock, tenure: &Tenure) {
    let lease = block_on(tenure.mutex("moved/1").acquire()).expect("free");
    let detached = lease.detach().expect("it has not ended");
    let lease = block_on(tenure.attach(&detached)).expect("answers").expect("it has not ended");
    block_on(tenure.break_hold("moved/1", lease.token(), true)).expect("answers");
    // A renewal is due after a third of the ttl, and is refused.
    clock.advance(11 * SECOND);
    block_on(lease.lost());
}

#[test]
fn what_the_program_did_is_on_the_page() {
    let (clock, _store, tenure) = client(Settings::new().counts(true));
    work(&clock, &tenure);
    let _term = block_on(tenure.election("scheduler").campaign()).expect("free");
    let _held = block_on(tenure.slot_pool("workers", 4).acquire()).expect("free");
    clock.advance(3 * SECOND);
    let page = render(&[tenure.counts()], Format::Prometheus);
    for line in [
        r#"tenure_claims_total{engine="memory",kind="mutex",scope="billing/*",outcome="granted"} 1"#,
        r#"tenure_claims_total{engine="memory",kind="mutex",scope="billing/*",outcome="busy"} 1"#,
        r#"tenure_claims_total{engine="memory",kind="single_flight",scope="price/*",outcome="fresh"} 1"#,
        r#"tenure_wait_seconds_count{engine="memory",kind="mutex",scope="billing/*"} 1"#,
        r#"tenure_wait_seconds_bucket{engine="memory",kind="mutex",scope="billing/*",le="0.0005"} 1"#,
        r#"tenure_hold_seconds_bucket{engine="memory",kind="mutex",scope="billing/*",le="1"} 0"#,
        r#"tenure_hold_seconds_bucket{engine="memory",kind="mutex",scope="billing/*",le="5"} 1"#,
        r#"tenure_hold_seconds_bucket{engine="memory",kind="mutex",scope="billing/*",le="+Inf"} 1"#,
        r#"tenure_waiting{engine="memory",kind="mutex",scope="billing/*"} 0"#,
        r#"tenure_leases{engine="memory",kind="slot_pool",scope="workers"} 1"#,
        r#"tenure_leases_lost_total{engine="memory",kind="mutex",scope="billing/*",reason="deadline"} 0"#,
        r#"tenure_releases_total{engine="memory",outcome="released"} 2"#,
        r#"tenure_places_lost_total{engine="memory",scope="billing/*"} 0"#,
        r#"tenure_leading{engine="memory",election="scheduler"} 1"#,
        r#"tenure_cache_found_total{engine="memory",scope="price/*",source="fresh"} 1"#,
        r#"tenure_cache_found_total{engine="memory",scope="price/*",source="loaded"} 1"#,
        r#"tenure_cache_load_seconds_sum{engine="memory",scope="price/*"} 1"#,
        r#"tenure_queue_pushes_total{engine="memory",queue="refunds",outcome="pushed"} 1"#,
        r#"tenure_queue_pushes_total{engine="memory",queue="refunds",outcome="duplicate"} 1"#,
        r#"tenure_queue_deliveries_total{engine="memory",queue="refunds",outcome="done"} 1"#,
        r#"tenure_queue_in_flight{engine="memory",queue="refunds"} 0"#,
        r#"tenure_queue_delay_seconds_count{engine="memory",queue="refunds"} 1"#,
        r#"tenure_queue_work_seconds_count{engine="memory",queue="refunds"} 1"#,
        r#"tenure_requests_total{engine="memory",verb="push",outcome="answered"} 2"#,
        r#"tenure_request_items_sum{engine="memory",verb="settle"} 1"#,
        r#"tenure_store_up{engine="memory"} 1"#,
        r#"tenure_scopes{engine="memory"} 6"#,
        concat!("tenure_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(page.lines().any(|has| has == line), "{line} is not in\n{page}");
    }
    let oldest = page
        .lines()
        .find(|line| line.starts_with("tenure_leases_oldest_seconds{") && line.contains("workers"));
    let oldest: f64 = oldest.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a number");
    assert!((3.0..3.001).contains(&oldest), "{oldest}");
}

#[test]
fn what_was_moved_and_refused_is_on_the_page() {
    let (clock, _store, tenure) = client(Settings::new().counts(true));
    lose(&clock, &tenure);
    let page = render(&[tenure.counts()], Format::Prometheus);
    for line in [
        r#"tenure_detached_total{engine="memory",kind="mutex",scope="moved/*"} 1"#,
        r#"tenure_attached_total{engine="memory",kind="mutex",scope="moved/*"} 1"#,
        r#"tenure_renewals_total{engine="memory",outcome="refused"} 1"#,
        r#"tenure_leases_lost_total{engine="memory",kind="mutex",scope="moved/*",reason="refused"} 1"#,
    ] {
        assert!(page.lines().any(|has| has == line), "{line} is not in\n{page}");
    }
}

#[test]
fn both_formats_have_the_same_numbers() {
    let (clock, _store, tenure) = client(Settings::new().counts(true));
    work(&clock, &tenure);
    let counts = [tenure.counts()];
    let numbers = |page: &str| -> Vec<String> {
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.contains("le=\""));
        lines.map(str::to_owned).collect()
    };
    let (plain, open) = (render(&counts, Format::Prometheus), render(&counts, Format::OpenMetrics));
    assert_eq!(numbers(&plain), numbers(&open));
    assert!(plain.contains("# TYPE tenure_claims_total counter\n"));
    assert!(open.contains("# TYPE tenure_claims counter\n") && open.ends_with("\n# EOF\n"));
    assert!(open.contains("le=\"1.0\"") && plain.contains("le=\"1\""));
}

#[test]
fn clients_of_one_engine_are_added_up() {
    let (clock, _store, tenure) = client(Settings::new().counts(true));
    work(&clock, &tenure);
    let page = render(&[tenure.counts(), tenure.counts()], Format::Prometheus);
    assert!(page.contains(r#"kind="mutex",scope="billing/*",outcome="granted"} 2"#), "{page}");
    assert!(
        page.contains(
            r#"tenure_hold_seconds_bucket{engine="memory",kind="mutex",scope="billing/*",le="5"} 2"#
        )
    );
    assert!(page.contains("tenure_store_up{engine=\"memory\"} 1\n"));
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(lines.iter().collect::<BTreeSet<_>>().len(), lines.len(), "no series twice");
}

#[test]
fn a_name_is_no_way_out_of_a_label() {
    let (_clock, _store, tenure) = client(Settings::new().counts(true));
    drop(block_on(tenure.mutex("a\"} 1\\").acquire()).expect("free"));
    let page = render(&[tenure.counts()], Format::Prometheus);
    assert!(page.contains(r#"scope="a\"} *\\",outcome="granted"} 1"#), "{page}");
}

#[test]
fn a_million_names_are_fewer_than_6000_series() {
    let (_clock, _store, tenure) = client(Settings::new().counts(true));
    for n in 0..1_000_000 {
        drop(tenure.mutex(&format!("tenant{}/{n}", n % 5000)));
    }
    for n in 0..5000 {
        drop(block_on(tenure.mutex(&format!("tenant{n}/0")).acquire()).expect("free"));
    }
    let page = render(&[tenure.counts()], Format::Prometheus);
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!((5000..=6000).contains(&series), "{series} series");
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

#[test]
fn requests_are_counted_and_what_is_known_beforehand_begins_at_zero() {
    let mut http = HttpCounts::default();
    for (took, status) in [(1, 200), (30, 200), (5000, 503)] {
        http.answered("/v1/claims/{claim}", "PUT", status, Duration::from_millis(took));
    }
    http.refused("rate");
    http.reloaded("failed");
    http.open("stream", 3);
    let page = Page::default().http(&http).text(Format::Prometheus);
    for line in [
        r#"tenure_http_requests_total{route="/v1/claims/{claim}",method="PUT",status="200"} 2"#,
        r#"tenure_http_requests_total{route="/v1/claims/{claim}",method="PUT",status="503"} 1"#,
        r#"tenure_http_request_seconds_bucket{route="/v1/claims/{claim}",le="0.001"} 1"#,
        r#"tenure_http_request_seconds_bucket{route="/v1/claims/{claim}",le="0.05"} 2"#,
        r#"tenure_http_request_seconds_bucket{route="/v1/claims/{claim}",le="2.5"} 2"#,
        r#"tenure_http_request_seconds_bucket{route="/v1/claims/{claim}",le="+Inf"} 3"#,
        r#"tenure_http_request_seconds_sum{route="/v1/claims/{claim}"} 5.031"#,
        r#"tenure_http_refused_total{reason="rate"} 1"#,
        r#"tenure_http_refused_total{reason="unauthorized"} 0"#,
        r#"tenure_http_tokens_reloads_total{outcome="failed"} 1"#,
        r#"tenure_http_tokens_reloads_total{outcome="done"} 0"#,
        r#"tenure_http_open{what="stream"} 3"#,
        r#"tenure_http_open{what="waiting"} 0"#,
    ] {
        assert!(page.lines().any(|has| has == line), "{line} is not in\n{page}");
    }
}

#[test]
fn the_page_of_the_documents_has_the_same_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating/metrics.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let rows = page.lines().filter(|line| line.starts_with("| `tenure_"));
    let rows: Vec<Vec<String>> = rows
        .map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect())
        .collect();
    let expected: Vec<Vec<String>> = METRICS
        .iter()
        .map(|metric| {
            let labels = metric.labels.join(", ");
            vec![metric.name.to_owned(), metric.of.as_str().to_owned(), labels, metric.help.to_owned()]
        })
        .collect();
    for (row, expected) in rows.iter().zip(&expected) {
        assert_eq!(row, expected);
    }
    assert_eq!(rows.len(), expected.len());
}
