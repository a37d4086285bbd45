//! The smaller verbs.
//! In: their arguments. Out: text or JSON on standard output. Knows nothing of how the daemon
//! computes its figures.

mod completion;
mod daemon;
mod doctor;
mod manual;
mod page;
mod top;
mod topo;

pub use daemon::daemon;
pub use doctor::doctor;
pub use top::top;
pub use topo::topo;

use crate::args::{ConfigArgs, ManArgs, StatusArgs, WhyArgs};
use crate::engine::read_settings;
use crate::figures::figures;
use crate::link::Link;
use crate::table::{Align, Table};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result};
use serde_json::Value;
use tiercel_daemon::protocol::Request;
use tiercel_daemon::{Settings, Summary};
use tiercel_machine::short_bytes;
use tiercel_policy::ShadowReport;

/// `tiercel why`.
pub fn why(args: &WhyArgs) -> Result<()> {
    match args.address {
        Some(address) => why_page(args, address),
        None => why_moves(args),
    }
}

fn why_page(args: &WhyArgs, address: u64) -> Result<()> {
    let mut link = Link::of_pages(&args.peer)?;
    let answer = link.ask(&Request::Why { pid: args.peer.pid, address }, "why")?;
    if args.json {
        return say_json("page", &answer);
    }
    let why = serde_json::from_value(answer).context("cannot parse the answer")?;
    say(&format!("{}\n", page::sentence(&why)))
}

fn why_moves(args: &WhyArgs) -> Result<()> {
    let limit = args.limit.min(tiercel_daemon::protocol::ROWS_MAX);
    let request = Request::Moves { limit };
    let mut link = Link::of(&args.peer)?;
    let moves = link.ask(&request, "moves")?;
    if args.json {
        return say_json("why", &serde_json::json!({ "moves": moves }));
    }
    let rows = moves.as_array().cloned().unwrap_or_default();
    if rows.is_empty() {
        return say("no moves yet\n");
    }
    say(&moves_table(&rows))?;
    let status = serde_json::from_value::<Summary>(link.ask(&Request::Status, "status")?);
    let status = status.context("cannot parse the daemon's status")?;
    say(&format!("{}{}", crate::figures::refused_by_programs(&status), accounts(&status)))
}

fn moves_table(rows: &[Value]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("time", Right),
        ("process", Right),
        ("reason", Left),
        ("size", Right),
        ("moved", Right),
        ("from", Left),
        ("to", Left),
        ("expected gain", Right),
        ("expected cost", Right),
        ("failed", Left),
    ]);
    for row in rows {
        table.row(move_row(row));
    }
    table.text()
}

/// The account of each placement: what moves saved and cost, and what they may cost now. Empty
/// without shadow placements.
fn accounts(summary: &Summary) -> String {
    use Align::{Left, Right};
    if summary.shadows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("placement", Left),
        ("saved", Right),
        ("spent", Right),
        ("may spend", Right),
        ("would have saved", Right),
        ("average over", Right),
        ("looks ahead", Right),
        ("nurseries", Right),
    ]);
    summary.shadows.iter().for_each(|one| table.row(account_row(one)));
    format!("\n{}", table.text())
}

fn account_row(one: &ShadowReport) -> Vec<String> {
    let ms = |ns: f64| format!("{:.2}ms", ns / 1e6);
    vec![
        format!("{}, tier {}", one.group, one.tier),
        ms(one.saved_ns),
        ms(one.spent_ns),
        ms(one.bank_ns.max(0.0)),
        ms(one.lead_ns.max(0.0)),
        format!("{:.2}s", one.average_s),
        format!("{:.2}s", one.horizon_s),
        format!("{} ({})", one.nurseries, short_bytes(one.nursery_bytes)),
    ]
}

/// `tiercel status`.
pub fn status(args: &StatusArgs) -> Result<()> {
    let mut link = Link::of(&args.peer)?;
    if let Some(fast) = args.set_fast {
        let set = link.ask(&Request::Budget { fast }, "budget")?;
        return say(&format!("budget of the fastest memory: {}\n", set.as_str().unwrap_or("?")));
    }
    if args.metrics {
        let text = link.ask(&Request::Metrics, "metrics")?;
        return say(text.as_str().context("the daemon's metrics are not text")?);
    }
    let status = link.ask(&Request::Status, "status")?;
    if args.json {
        return say_json("status", &status);
    }
    let summary: Summary = serde_json::from_value(status).context("the daemon's status")?;
    say(&figures(&summary))
}

/// `tiercel config`.
pub fn config(args: &ConfigArgs) -> Result<()> {
    let settings = match &args.check {
        Some(path) => read_settings(path)?,
        None => Settings::default(),
    };
    if args.json {
        return say_json("config", &settings);
    }
    match &args.check {
        Some(path) => say(&format!("{} is a valid configuration\n", path.display())),
        None => say(&settings.to_commented_toml()),
    }
}

/// `tiercel completions`.
pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    say(&completion::script(shell)?)
}

/// `tiercel man`.
pub fn man(args: &ManArgs) -> Result<()> {
    let Some(folder) = &args.all else { return say(&manual::page(&args.verb)?) };
    let pages = manual::write_all(folder)?;
    say(&format!("{pages} manual pages are in {}\n", folder.display()))
}

fn move_row(row: &Value) -> Vec<String> {
    let asked = &row["asked"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let node = |value: &Value| value.as_u64().map_or("-".to_owned(), |n| format!("node{n}"));
    let failed = row["failed"].as_array().cloned().unwrap_or_default();
    let failed = failed.iter().map(|pair| {
        format!("{} {}", pair[0].as_str().unwrap_or("?"), short_bytes(number(&pair[1])))
    });
    vec![
        format!("{:.1}s", number(&row["time_ms"]) as f64 / 1e3),
        number(&asked["pid"]).to_string(),
        asked["reason"].as_str().unwrap_or("?").to_owned(),
        short_bytes(number(&asked["bytes"])),
        short_bytes(number(&row["moved_bytes"])),
        node(&asked["from"]),
        node(&asked["to"]),
        format!("{:.2}ms/s", asked["gain_ns_per_s"].as_f64().unwrap_or(0.0) / 1e6),
        format!("{:.2}ms", asked["cost_ns"].as_f64().unwrap_or(0.0) / 1e6),
        failed.collect::<Vec<_>>().join(", "),
    ]
}
