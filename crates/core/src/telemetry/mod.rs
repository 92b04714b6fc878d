//! What a process lets others see: logs, metrics, traces. A log line names a recipient masked and a body never; a panic is
//! reported by its place, since its text may hold data.

mod metrics;
pub mod traces;

use anyhow::Context as _;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{Config, Log, LogFormat};

pub use metrics::{Labels, Metrics};
use traces::Exporter;

/// Starts logs on standard output, reports panics by place, and traces if the configuration names a collector. To be called
/// outside async code, after a TLS provider is installed.
///
/// # Errors
/// The filter or the collector's address does not parse, or logging was started before.
pub fn start(worker: &str, config: &Config) -> anyhow::Result<Option<Exporter>> {
    let logs = logs(&config.log)?;
    let exporter = Exporter::of(worker, &config.traces)?;
    let traces = exporter.as_ref().map(Exporter::layer);
    tracing_subscriber::registry().with(logs).with(traces).try_init().context("cannot start logging")?;
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(|| "unknown place".to_owned(), ToString::to_string);
        tracing::error!(place, "panic");
    }));
    Ok(exporter)
}

fn logs(log: &Log) -> anyhow::Result<impl Layer<Registry> + use<>> {
    let mut filter = EnvFilter::try_new(&log.filter)?;
    // Released connections are rolled back as a matter of course; PostgreSQL warns each time that nothing was open. And a
    // span is no line of a log.
    for directive in ["sqlx::postgres::notice=error", traces::NOT_LOGGED] {
        filter = filter.add_directive(directive.parse()?);
    }
    let lines = fmt::layer().with_target(false);
    let lines = match log.format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
        LogFormat::Text => lines.boxed(),
    };
    Ok(lines.with_filter(filter))
}
