//! The names of all metrics, in the order of the page that explains them.

/// What sort of number a metric is.
///
/// No example: [`METRICS`] has one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// It only grows, but for restarts of the process.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often something was so much, in buckets.
    Histogram,
}

impl MetricType {
    /// Returns the word of the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

/// How the numbers of several clients are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Sum,
    Most,
    Least,
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub of: MetricType,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it means, in a line.
    pub help: &'static str,
    pub(crate) fold: Fold,
}

macro_rules! metrics {
    ($($constant:ident $name:literal $of:ident $fold:ident [$($label:literal)*] $help:literal;)*) => {
        $(pub(crate) const $constant: Metric = Metric {
            name: $name,
            of: MetricType::$of,
            labels: &[$($label),*],
            help: $help,
            fold: Fold::$fold,
        };)*

        /// All metrics.
        pub const METRICS: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    CLAIMS "tenure_claims_total" Counter Sum ["engine" "kind" "scope" "outcome"]
        "Claims that ended, by how.";
    WAIT "tenure_wait_seconds" Histogram Sum ["engine" "kind" "scope"]
        "From asking to the lease, of claims that were granted.";
    WAITING "tenure_waiting" Gauge Sum ["engine" "kind" "scope"]
        "Claims of this process that wait.";
    WAITING_OLDEST "tenure_waiting_oldest_seconds" Gauge Most ["engine" "kind" "scope"]
        "Age of the oldest claim of this process that waits; 0 if none does.";
    LEASES "tenure_leases" Gauge Sum ["engine" "kind" "scope"]
        "Leases that this process holds.";
    LEASES_OLDEST "tenure_leases_oldest_seconds" Gauge Most ["engine" "kind" "scope"]
        "Age of the oldest lease that this process holds; 0 if it holds none.";
    HOLD "tenure_hold_seconds" Histogram Sum ["engine" "kind" "scope"]
        "From grant, or from when it was attached, to release, loss or detachment.";
    LOST "tenure_leases_lost_total" Counter Sum ["engine" "kind" "scope" "reason"]
        "Leases that were lost: the work behind them was interrupted.";
    DETACHED "tenure_detached_total" Counter Sum ["engine" "kind" "scope"]
        "Leases and deliveries that were detached, for another client or a later moment.";
    ATTACHED "tenure_attached_total" Counter Sum ["engine" "kind" "scope"]
        "Leases and deliveries that were detached somewhere and are renewed by this process since.";
    RELEASES "tenure_releases_total" Counter Sum ["engine" "outcome"]
        "Releases, by how they ended.";
    PLACES_LOST "tenure_places_lost_total" Counter Sum ["engine" "scope"]
        "Waiters that lost their place and queued anew.";
    RENEWALS "tenure_renewals_total" Counter Sum ["engine" "outcome"]
        "Renewals of leases and deliveries, by how they ended.";
    SLACK "tenure_renewal_slack_ratio" Histogram Sum ["engine"]
        "Part of the ttl that was left when a renewal was answered: about 0.65 if all is well, 0 is a loss.";
    HAND_OVERS "tenure_hand_overs_total" Counter Sum ["engine" "by"]
        "How waiters learned of their grants: heartbeats say that wakes get lost.";
    REQUESTS "tenure_requests_total" Counter Sum ["engine" "verb" "outcome"]
        "Calls of the store, by how they ended.";
    REQUEST_TIME "tenure_request_seconds" Histogram Sum ["engine" "verb"]
        "How long calls of the store took.";
    REQUEST_ITEMS "tenure_request_items" Histogram Sum ["engine" "verb"]
        "How many requests went in each call of the store.";
    STORE_UP "tenure_store_up" Gauge Least ["engine"]
        "1: the last call of the store was answered in time.";
    STORE_FORGOT "tenure_store_forgot_total" Counter Sum ["engine"]
        "How often the store may have forgotten what it knew: a restart, a failover.";
    TOKENS_AHEAD "tenure_tokens_ahead_total" Counter Sum ["engine"]
        "Tokens ahead of this machine's time of day: a clock is or was wrong.";
    LATE "tenure_late_seconds" Histogram Sum ["engine"]
        "By how much the thread that renews leases woke too late.";
    LEADING "tenure_leading" Gauge Most ["engine" "election"]
        "1: this process leads, 0: it campaigns or has campaigned.";
    FOUND "tenure_cache_found_total" Counter Sum ["engine" "scope" "source"]
        "Where values of single-flights came from.";
    LOAD "tenure_cache_load_seconds" Histogram Sum ["engine" "scope"]
        "How long loads of single-flights took that succeeded.";
    PUSHES "tenure_queue_pushes_total" Counter Sum ["engine" "queue" "outcome"]
        "Pushes into queues, by how they ended.";
    DELIVERIES "tenure_queue_deliveries_total" Counter Sum ["engine" "queue" "outcome"]
        "Deliveries of queues, by how they ended.";
    IN_FLIGHT "tenure_queue_in_flight" Gauge Sum ["engine" "queue"]
        "Deliveries that are with this process.";
    DELAY "tenure_queue_delay_seconds" Histogram Sum ["engine" "queue"]
        "From when an item was due to its first hand-out.";
    WORK "tenure_queue_work_seconds" Histogram Sum ["engine" "queue"]
        "From hand-out to settlement or loss.";
    SCOPES "tenure_scopes" Gauge Sum ["engine"]
        "Values of the labels scope, queue and election that are in use.";
    FOLDED "tenure_scopes_folded_total" Counter Sum ["engine"]
        "How often something was named that is counted as other: the limit of label values is reached.";
    EVENTS_DROPPED "tenure_events_dropped_total" Counter Sum ["engine"]
        "Events, and lines of engines, that a log or a listener was too slow for.";
    INFO "tenure_info" Gauge Most ["version"]
        "1, for the version.";
    RUN_RUNNING "tenure_run_running" Gauge Most ["name"]
        "1: a run holds the lock now.";
    RUN_START "tenure_run_last_start_timestamp_seconds" Gauge Most ["name"]
        "When a run last began to wait for the lock.";
    RUN_SUCCESS "tenure_run_last_success_timestamp_seconds" Gauge Most ["name"]
        "When a run last ended with exit code 0.";
    RUN_BUSY "tenure_run_last_busy_timestamp_seconds" Gauge Most ["name"]
        "When a run last found the lock held and did nothing.";
    RUN_EXIT "tenure_run_last_exit_code" Gauge Most ["name"]
        "The exit code of the last run that was not busy.";
    RUN_WAIT "tenure_run_last_wait_seconds" Gauge Most ["name"]
        "How long the last run that was not busy waited for the lock.";
    RUN_HOLD "tenure_run_last_hold_seconds" Gauge Most ["name"]
        "How long the last run that was not busy held the lock.";
    RUN_EXPECTED "tenure_run_expected_seconds" Gauge Most ["name"]
        "How much time may pass between two successes.";
    STORE_HOLDS "tenure_store_holds" Gauge Sum ["engine" "kind" "scope"]
        "Holds in the store, of all processes; of each name 1024 at most.";
    STORE_RESTING "tenure_store_resting" Gauge Sum ["engine" "kind" "scope"]
        "Grants that rest: nobody holds them, and nobody can be granted their units.";
    STORE_WAITING "tenure_store_waiting" Gauge Sum ["engine" "kind" "scope"]
        "Claims that wait, of all processes.";
    STORE_OLDEST_HOLD "tenure_store_oldest_hold_seconds" Gauge Most ["engine" "kind" "scope"]
        "Age of the oldest hold, but for those that are said to be long; 0 if there is none.";
    STORE_QUEUE_ITEMS "tenure_store_queue_items" Gauge Sum ["engine" "queue" "state"]
        "Items of queues.";
    STORE_QUEUE_OLDEST "tenure_store_queue_oldest_seconds" Gauge Most ["engine" "queue" "state"]
        "How long ago the first item was pushed that is in that state; 0 if none is.";
    STORE_FINDINGS "tenure_store_findings" Gauge Sum ["engine" "severity" "what"]
        "What the doctor has found: 1 for each finding.";
    STORE_NAMES "tenure_store_names" Gauge Sum ["engine"]
        "Names of locks and queues that the survey has looked at: of 50000 there may be more.";
    SURVEY_TIME "tenure_survey_seconds" Gauge Most ["engine"]
        "How long the survey took that says what is in the store.";
    SURVEY_AGE "tenure_survey_age_seconds" Gauge Most ["engine"]
        "How long ago it was over.";
    HTTP_REQUESTS "tenure_http_requests_total" Counter Sum ["route" "method" "status"]
        "Requests of tenure serve that were answered, by the pattern of their path.";
    HTTP_TIME "tenure_http_request_seconds" Histogram Sum ["route"]
        "How long answers took, without the time spent waiting for a grant or an item.";
    HTTP_OPEN "tenure_http_open" Gauge Sum ["what"]
        "Connections, requests that wait, and streams that are open now.";
    HTTP_REFUSED "tenure_http_refused_total" Counter Sum ["reason"]
        "Requests and connections that were refused, by why.";
    HTTP_RELOADS "tenure_http_tokens_reloads_total" Counter Sum ["outcome"]
        "How often the file of tokens was read again.";
}
