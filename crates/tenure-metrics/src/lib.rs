//! What clients of tenure have counted, as metrics.
//!
//! A client counts if its settings say so; this crate shows it: [`render`] writes the page that Prometheus scrapes, [`Server`] serves it
//! on an address of its own, [`RunFile`] keeps what is known of a short run for the textfile collector of node_exporter, and [`Bridge`]
//! hands every event to the recorder of the `metrics` facade. Names, types, labels and meanings are in
//! [`METRICS`], and on the page `docs/operating/metrics.md`.
//!
//! # Examples
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
//! use tenure_core::{Settings, Tenure, memory::Store};
//! use tenure_metrics::{Format, render};
//!
//! // In a program: `tenure::connect_with(url, settings).await?`
//! let settings = Settings::new().counts(true);
//! # let tenure = Tenure::connect_with(Store::named("metrics-example").connector(), settings).await?;
//! tenure.mutex("billing/4711").acquire().await?.release().await?;
//!
//! let page = render(&[tenure.counts()], Format::Prometheus);
//! let granted = r#"tenure_claims_total{engine="memory",kind="mutex",scope="billing/*",outcome="granted"} 1"#;
//! assert!(page.contains(granted), "{page}");
//! # Ok(()) }) }
//! ```

mod bridge;
mod http;
mod names;
mod render;
mod run_file;
mod server;
mod store;
mod text_file;

pub use bridge::Bridge;
pub use http::HttpCounts;
pub use names::{METRICS, Metric, MetricType};
pub use render::{Format, Page, render};
pub use run_file::{Holding, Run, RunFile};
pub use server::{Address, Listener, Server};
pub use store::render_store;
pub use text_file::TextFile;
