//! The engine of the command: its URL, the connection, and the library's log.

use tenure::{Result, Settings, Tenure};

use crate::exit::{self, Failure};
use crate::output::lines::Log;
use crate::output::messages::Messages;
use crate::traces;

/// The engine of this machine, which needs nothing.
pub(crate) const ENGINE_DEFAULT: &str = "local:";

/// Refuses what is no engine, and warns of one that is not what it seems.
pub(crate) fn check_engine(engine: &str, messages: Messages) -> std::result::Result<(), Failure> {
    if engine.is_empty() {
        // An empty secret, or a variable that is not set where a unit uses it: on each machine of a fleet another lock.
        let hint = format!("set it, or unset it to use `{ENGINE_DEFAULT}`, which locks on this machine only");
        return Err(
            Failure::new(exit::USAGE, "the engine's URL (TENURE_ENGINE, --engine) is empty").with_hint(hint)
        );
    }
    let user = std::env::var("SUDO_UID").unwrap_or_default();
    if engine == ENGINE_DEFAULT && rustix::process::geteuid().is_root() && !matches!(&*user, "" | "0") {
        messages.warning(&format!(
            "`{ENGINE_DEFAULT}` is a store for each user: root's locks, and not those of user {user}, are used here"
        ));
    }
    Ok(())
}

/// Connects and waits for it. Not for a process that still forks: a client has threads.
pub(crate) fn connect_blocking(engine: &str) -> std::result::Result<Tenure, Failure> {
    Ok(pollster::block_on(connect(engine, Settings::new()))?)
}

/// Connects. Not for a process that still forks: a client has threads.
pub(crate) async fn connect(engine: &str, settings: Settings) -> Result<Tenure> {
    begin_log(None);
    tenure::connect_with(engine, settings).await
}

/// Connects for a server, which logs something also where `TENURE_LOG` does not say what.
pub(crate) async fn connect_server(engine: &str, settings: Settings, log: &str) -> Result<Tenure> {
    begin_log(Some(log));
    tenure::connect_with(engine, settings).await
}

/// Writes the library's log to stderr if `TENURE_LOG` says what of it: `debug`, or `tenure_core=trace`. `TENURE_LOG_FORMAT=json`: as
/// one JSON object a line. Sends its spans to a collector, if there is one.
fn begin_log(default: Option<&str>) {
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let is_json = match set("TENURE_LOG_FORMAT").as_deref() {
        None | Some("text") => false,
        Some("json") => true,
        Some(_) => {
            Messages::TEXT.warning("TENURE_LOG_FORMAT is not understood: write `json` or `text`");
            false
        }
    };
    let wanted = set("TENURE_LOG").or(default.map(str::to_owned));
    let targets = wanted.and_then(|wanted| match wanted.parse::<Targets>() {
        // Each line would begin with a span and all that is in it.
        Ok(targets) if !traces::SPANS.iter().any(|spans| wanted.contains(spans)) => {
            Some(targets.with_targets(traces::SPANS.map(|spans| (spans, LevelFilter::OFF))))
        }
        Ok(targets) => Some(targets),
        Err(_) => {
            Messages::TEXT.warning("TENURE_LOG is not understood: write `debug` or `tenure_core=trace`");
            None
        }
    });
    let log = targets.map(|targets| {
        let layer = tracing_subscriber::fmt::layer().with_writer(|| Log);
        let layer = match is_json {
            // The fields of an event stand beside its message.
            true => layer.json().flatten_event(true).with_current_span(false).boxed(),
            false => layer.boxed(),
        };
        layer.with_filter(targets)
    });
    let spans = traces::layer();
    // Where nobody listens, nothing is put together for anybody.
    if log.is_some() || spans.is_some() {
        // It fails only if there is a log already.
        drop(tracing_subscriber::registry().with(log).with(spans).try_init());
    }
    traces::begin();
}
