//! A summary as Prometheus text.
//! In: a [`Summary`]. Out: text in the exposition format. Knows nothing of how it is fetched.

use crate::summary::Summary;
use std::fmt::Write;

/// All figures, one metric each.
pub fn prometheus(summary: &Summary) -> String {
    let s = summary;
    let mut out = String::new();
    let plain = [
        ("clients", "gauge", "Hosted processes", s.clients.now),
        ("clients_attached_total", "counter", "Processes that attached", s.clients.attached),
        ("records_total", "counter", "Records drained", s.records.drained),
        ("records_lost_total", "counter", "Records lost", s.records.lost),
        ("resyncs_total", "counter", "Object tables read after a loss", s.records.resyncs),
        ("samples_total", "counter", "Samples seen", s.samples.seen),
        ("samples_attributed_total", "counter", "Samples that hit an object", s.samples.attributed),
        ("samples_ended_total", "counter", "Samples that hit a dead object", s.samples.ended),
        ("samples_undecided_total", "counter", "Samples of one of several", s.samples.undecided),
        ("lives_forgotten_total", "counter", "Lives forgotten early", s.samples.lives_forgotten),
        ("samples_lost_total", "counter", "Samples dropped", s.samples.lost),
        ("samples_throttled_total", "counter", "Times the source was slowed", s.samples.throttled),
        ("looks_blind_total", "counter", "Looks at too large processes", s.samples.blind),
        ("objects_born_total", "counter", "Objects born", s.objects.born),
        ("extents", "gauge", "Live extents", s.objects.extents),
        ("live_bytes", "gauge", "Bytes of live objects", s.objects.live_bytes),
        ("peak_bytes", "gauge", "Most bytes of live objects", s.objects.peak_bytes),
        ("budget_bytes", "gauge", "Budget of the best tier", s.budget.fast_bytes),
        ("budget_used_bytes", "gauge", "Bytes in the best tier", s.budget.used_bytes),
        ("moves_total", "counter", "Moves asked for", s.moves.asked),
        ("moves_modelled", "gauge", "1 when moves are modelled", u64::from(s.modelled)),
        ("ticks_total", "counter", "Ticks", s.spent.ticks),
        ("ticks_late_total", "counter", "Ticks a whole tick late", s.spent.ticks_late),
        ("tick_delay_ms_max", "gauge", "Longest delay of a tick", s.spent.tick_delay_ms_max),
        ("wakeups_total", "counter", "Wake-ups of the loop", s.spent.wakeups),
    ];
    for (name, kind, help, value) in plain {
        header(&mut out, name, kind, help);
        let _ = writeln!(out, "tiercel_{name} {value}");
    }
    let labelled = [
        ("moved_bytes_total", "Bytes moved", "reason", &s.moves.moved_bytes),
        ("failed_bytes_total", "Bytes that did not move", "failure", &s.moves.failed_bytes),
        ("refused_total", "Connections turned away", "reason", &s.clients.refused),
        ("problems_total", "What did not work", "problem", &s.problems),
    ];
    for (name, help, label, values) in labelled {
        header(&mut out, name, "counter", help);
        for (key, value) in values {
            let _ = writeln!(out, "tiercel_{name}{{{label}=\"{}\"}} {value}", escaped(key));
        }
    }
    header(&mut out, "moves_seconds", "gauge", "What moves saved and cost");
    for one in &s.shadows {
        for (what, ns) in [("saved", one.saved_ns), ("spent", one.spent_ns)] {
            let (group, tier, seconds) = (escaped(&one.group), one.tier, ns / 1e9);
            let labels = format!("group=\"{group}\",tier=\"{tier}\",what=\"{what}\"");
            let _ = writeln!(out, "tiercel_moves_seconds{{{labels}}} {seconds}");
        }
    }
    header(&mut out, "spent_seconds_total", "counter", "Time spent by the daemon");
    let parts = [
        ("cpu", s.spent.cpu_ns),
        ("records", s.spent.records_ns),
        ("samples", s.spent.samples_ns),
        ("ledger", s.spent.ledger_ns),
        ("policy", s.spent.policy_ns),
        ("mover", s.spent.mover_ns),
        ("sampling_of_programs", s.spent.theirs_ns),
    ];
    for (part, ns) in parts {
        let seconds = ns as f64 / 1e9;
        let _ = writeln!(out, "tiercel_spent_seconds_total{{part=\"{part}\"}} {seconds}");
    }
    out
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP tiercel_{name} {help}\n# TYPE tiercel_{name} {kind}");
}

/// Label values: backslash, quote and newline are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_metric() {
        let mut summary = Summary::default();
        summary.problem("quote \" and\nnewline".into());
        summary.moves.moved_bytes.insert("demote".into(), 4096);
        let text = prometheus(&summary);
        for line in text.lines() {
            let metric = line.starts_with("tiercel_") && line.split(' ').count() >= 2;
            assert!(line.starts_with("# ") || metric, "{line}");
        }
        assert!(text.contains("tiercel_moved_bytes_total{reason=\"demote\"} 4096"));
        assert!(text.contains(r#"{problem="quote \" and\nnewline"} 1"#));
    }
}
