//! The figures of a run or a daemon, one line each.
//! In: a [`Summary`]. Out: lines. Knows nothing of sites, or of where the lines go.

use crate::terminal::printable;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::Duration;
use tiercel_daemon::{Coverage, PlanSummary, Summary};
use tiercel_machine::{number, short_bytes};

/// The figures, one line each.
pub fn figures(s: &Summary) -> String {
    let mut out = String::new();
    objects_line(&mut out, s);
    let records = &s.records;
    let (drained, lost, resyncs) = (records.drained, records.lost, records.resyncs);
    let _ = writeln!(out, "records    {drained} drained, {lost} lost, {resyncs} resyncs");
    samples(&mut out, s);
    coverage(&mut out, s);
    pools(&mut out, s);
    moves(&mut out, s);
    budget_line(&mut out, s);
    if let Some(plan) = &s.plan {
        planned(&mut out, plan);
    }
    spent(&mut out, s);
    problems(&mut out, s);
    clients(&mut out, s);
    if s.modelled {
        modelled_line(&mut out, s);
    }
    out
}

fn objects_line(out: &mut String, s: &Summary) {
    let objects = &s.objects;
    let _ = writeln!(
        out,
        "objects    {} allocated ({}), {} of them ephemeral; peak {} in {}",
        objects.born,
        short_bytes(objects.born_bytes),
        objects.ephemeral,
        short_bytes(objects.peak_bytes),
        plural(s.clients.attached, "process", "processes"),
    );
}

fn samples(out: &mut String, s: &Summary) {
    let samples = &s.samples;
    let _ = writeln!(
        out,
        "samples    {} by {}: {} in objects, {} in ephemeral objects, {} elsewhere; {} lost",
        samples.seen,
        s.sampler,
        samples.attributed,
        samples.ephemeral,
        samples.outside,
        samples.lost
    );
    if samples.ended + samples.undecided > 0 {
        let _ = writeln!(
            out,
            "late       {} samples were of objects that had died when they were read, {} undecided",
            samples.ended, samples.undecided
        );
    }
    if samples.lives_forgotten > 0 {
        let count = samples.lives_forgotten;
        let _ =
            writeln!(out, "forgotten  {count} lives of objects, before all samples of them came");
    }
    if samples.throttled > 0 {
        let count = samples.throttled;
        let _ = writeln!(out, "throttled  the kernel throttled sampling {count} times");
    }
    if samples.blind > 0 {
        let _ = writeln!(
            out,
            "skipped    {} page-table scans: the process is too large to be probed for reads",
            samples.blind
        );
    }
}

/// What is seen of the processes' memory and of their accesses, and what is not.
fn coverage(out: &mut String, s: &Summary) {
    let Coverage { rss_bytes, tracked_bytes: (least, most), .. } = s.coverage;
    if rss_bytes > 0 {
        let percent = |bytes: u64| number::saturating_u64(bytes as f64 * 100.0 / rss_bytes as f64);
        let (of, tracked) = (short_bytes(rss_bytes), range(short_bytes(least), short_bytes(most)));
        let percents = range(percent(least).to_string(), percent(most).to_string());
        let _ = write!(out, "coverage   tracked {tracked} of {of} of RSS ({percents}%)");
        if s.samples.seen > 0 {
            let known = s.samples.seen.saturating_sub(s.samples.outside);
            let _ = write!(out, ", {}% of samples", known * 100 / s.samples.seen);
        }
        if let Some((name, bytes)) = &s.coverage.largest_untracked {
            let _ =
                write!(out, "; largest untracked: {}, {}", short_bytes(*bytes), printable(name));
        }
        out.push('\n');
    }
    if s.coverage.unread > 0 {
        let processes = plural(s.coverage.unread, "process", "processes");
        let _ = writeln!(out, "coverage   of {processes} the mappings cannot be read");
    }
}

/// `5 to 6`, or `5`.
fn range(least: String, most: String) -> String {
    if least == most { least } else { format!("{least} to {most}") }
}

/// Problems, and bytes that stayed in the wrong tier.
fn problems(out: &mut String, s: &Summary) {
    for (problem, count) in &s.problems {
        let _ = writeln!(out, "problem    {}{}", printable(problem), times(*count));
    }
    for (why, bytes) in s.left_bytes.iter().filter(|(_, bytes)| **bytes > 0) {
        let _ = writeln!(out, "not moved  {} in the wrong tier: {why}", short_bytes(*bytes));
    }
}

/// Processes that detached, and connections that were refused.
fn clients(out: &mut String, s: &Summary) {
    for (reason, count) in &s.clients.stepped_aside {
        let processes = plural(*count, "process", "processes");
        let _ = writeln!(out, "detached   {processes}: {}", printable(reason));
    }
    if s.clients.adopted > 0 {
        let processes = plural(s.clients.adopted, "forked process", "forked processes");
        let _ = writeln!(out, "forked     {processes} did not attach: known as the parent had it");
    }
    if s.clients.unseen > 0 {
        let processes = plural(s.clients.unseen, "forked process", "forked processes");
        let _ = writeln!(out, "unseen     {processes} did not attach: nothing of it is known");
    }
    if s.clients.small > 0 {
        let programs = plural(s.clients.small, "process", "processes");
        let _ = writeln!(out, "small      {programs} ended small, or stayed so: not attached");
    }
    if s.clients.failed > 0 {
        let processes = plural(s.clients.failed, "process", "processes");
        let why = s.clients.failure.as_deref().unwrap_or("unknown");
        let _ = writeln!(out, "failed     {processes} could not attach: {}", printable(why));
    }
    for (remark, count) in &s.clients.remarks {
        let _ = writeln!(out, "remark     {}: {remark}", plural(*count, "process", "processes"));
    }
    for (reason, count) in &s.clients.refused {
        let connections = plural(*count, "connection", "connections");
        let _ = writeln!(out, "refused    {connections}: {reason}");
    }
}

fn modelled_line(out: &mut String, s: &Summary) {
    let note = if s.mover_note.is_empty() { "moves are simulated" } else { &s.mover_note };
    let _ = writeln!(out, "MODELLED   no memory was moved: {note}");
}

fn moves(out: &mut String, s: &Summary) {
    let verb = if s.modelled { "would have moved" } else { "moved" };
    let _ = writeln!(
        out,
        "moves      {} requested in {}; {verb} {}{}; failed {}{}",
        s.moves.asked,
        plural(s.decisions, "decision", "decisions"),
        short_bytes(s.moves.moved_bytes_all()),
        amounts(&s.moves.moved_bytes),
        short_bytes(s.moves.failed_bytes.values().sum()),
        amounts(&s.moves.failed_bytes),
    );
    if s.moves.own_bytes > 0 {
        let own = short_bytes(s.moves.own_bytes);
        let _ = writeln!(out, "           {own} of it by the hosted programs");
    }
    out.push_str(&refused_by_programs(s));
}

/// What hosted programs were asked to move and cannot without loss; empty where there is none.
pub fn refused_by_programs(s: &Summary) -> String {
    let refused = &s.moves.own_refused_bytes;
    let bytes: u64 = refused.values().sum();
    if bytes == 0 {
        return String::new();
    }
    format!(
        "           {} left to the kernel by the hosted programs{}\n",
        short_bytes(bytes),
        amounts(refused)
    )
}

/// Bytes by reason in brackets; nothing where there are none.
fn amounts<K: Display>(bytes: &BTreeMap<K, u64>) -> String {
    let parts = bytes.iter().map(|(reason, bytes)| format!("{reason} {}", short_bytes(*bytes)));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// Pools, and that no program asked for their memory: ordinary heaps never come from them.
fn pools(out: &mut String, s: &Summary) {
    for pool in &s.pools {
        let (node, size) = (pool.node, short_bytes(pool.capacity_bytes));
        let _ = match pool.granted {
            0 => writeln!(
                out,
                "pool       node {node}: none of {size} was used, because no program registered a \
                 vregion there (docs/pools.md)"
            ),
            granted => writeln!(
                out,
                "pool       node {node}: {} of {size} granted, {} in all",
                short_bytes(pool.granted_bytes),
                plural(granted, "segment", "segments"),
            ),
        };
    }
}

fn budget_line(out: &mut String, s: &Summary) {
    let _ = writeln!(
        out,
        "budget     {} of fast memory ({}), {} used at the last tick; machine {}",
        short_bytes(s.budget.fast_bytes),
        s.budget.fast,
        short_bytes(s.budget.used_bytes),
        s.machine,
    );
}

/// The outcome of the plan, and its sites without a match.
fn planned(out: &mut String, plan: &PlanSummary) {
    let by_name = match plan.by_name {
        0 => String::new(),
        count => format!(" ({count} by function and line)"),
    };
    let _ = writeln!(
        out,
        "plan       {} of {} sites matched{by_name}; {} allocated as planned, {} at unplanned \
         sites{}",
        plan.matched,
        plan.sites,
        short_bytes(plan.planned_bytes),
        short_bytes(plan.unplanned_bytes),
        if plan.adapt { "; the policy places the rest" } else { "" },
    );
    if plan.phases_entered + plan.phases_lost > 0 {
        phases_line(out, plan);
    }
    for remark in &plan.remarks {
        let _ = writeln!(out, "remark     {}", printable(remark));
    }
    for place in &plan.unmatched {
        let _ = writeln!(out, "unmatched  {}", printable(place));
    }
}

fn phases_line(out: &mut String, plan: &PlanSummary) {
    let _ = writeln!(
        out,
        "phases     {} entered, objects moved at {}, {} moved ahead, {} missed",
        plan.phases_entered,
        plan.phases_moved,
        short_bytes(plan.early_bytes),
        plan.phases_lost
    );
}

fn spent(out: &mut String, s: &Summary) {
    let share = s.spent.cpu_ns as f64 / (s.elapsed_ms.max(1) as f64 * 1e6) * 100.0;
    let ms = |ns: u64| format!("{:.1?}", Duration::from_nanos(ns));
    let _ = writeln!(
        out,
        "overhead   {} CPU in {:.1?} ({share:.2}%): records {}, samples {}, ledger {}, policy {}, \
         mover {}, attaching and detaching {}; {} ticks",
        ms(s.spent.cpu_ns),
        Duration::from_millis(s.elapsed_ms),
        ms(s.spent.records_ns),
        ms(s.spent.samples_ns),
        ms(s.spent.ledger_ns),
        ms(s.spent.policy_ns),
        ms(s.spent.mover_ns),
        ms(s.spent.other_ns()),
        s.spent.ticks,
    );
}

fn times(count: u64) -> String {
    if count == 1 { String::new() } else { format!(" ({count} times)") }
}

/// `1 process`, `2 processes`.
pub fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
