//! Why an OS page is where it is, in a sentence.
//! In: [`PageWhy`]. Out: text. Knows nothing of how it was found.

use tiercel_daemon::pages::{Decision, LastDecision, MoveResult, PageWhy};
use tiercel_ledger::movement::{Failure, Reason};
use tiercel_ledger::regions::Accessor;
use tiercel_machine::{NodeId, short_bytes};
use tiercel_policy::pages::Stay;

/// The sentence.
pub fn sentence(why: &PageWhy) -> String {
    let kind = if why.of_file { "of a file" } else { "anonymous" };
    format!(
        "{:#x} of process {} ({}, {kind}) is on node{}, tier {} of {} {}; {}.",
        why.addr,
        why.pid,
        short_bytes(why.bytes),
        why.node,
        why.tier,
        why.tiers,
        accesses(why),
        last(why.last.as_ref()),
    )
}

fn accesses(why: &PageWhy) -> String {
    let by = match why.accessor {
        Accessor::Unknown => return "for the machine: no access to it was seen".to_owned(),
        Accessor::Node(node) => format!("for node{node}, whose CPUs accessed it in"),
        Accessor::Several => "for the machine: CPUs of several nodes accessed it in".to_owned(),
    };
    let (Some(rate), Some(lost)) = (why.accesses_per_s, why.lost_ns_per_s) else {
        return format!("{by} a window that has not ended");
    };
    let bound = if why.accessed == why.windows { "at least" } else { "about" };
    let more = match why.node == why.best {
        true => String::new(),
        false => format!(", {} more stall than on node{}", per_s(lost), why.best),
    };
    format!("{by} {} of {} windows ({bound} {rate:.0}/s{more})", why.accessed, why.windows)
}

fn last(decision: Option<&LastDecision>) -> String {
    let Some(LastDecision { ago_ms, what, .. }) = decision else {
        return "nothing was decided on it lately".to_owned();
    };
    let ago = *ago_ms as f64 / 1e3;
    match what {
        Decision::Stays(stay) => format!("{ago:.1}s ago it stayed: {}", stayed(*stay)),
        Decision::Moves { from, to, reason, gain_ns_per_s, cost_ns, result } => {
            let from = from.map_or(String::new(), |node| format!(" from node{node}"));
            let (effect, cost) = (effect(*gain_ns_per_s), duration(*cost_ns));
            let why = match reason {
                Reason::Promote => format!("promoted{from} to node{to}, {effect} for {cost}"),
                Reason::Demote => {
                    format!("demoted{from} to node{to} to make room, {effect} and {cost} once")
                }
                Reason::Asked => format!("moved{from} to node{to}, as asked"),
            };
            format!("{ago:.1}s ago it was to be {why}, and {}", became(result.as_ref(), *to))
        }
    }
}

fn stayed(stay: Stay) -> String {
    match stay {
        Stay::Settled => "it is where its accessors want it".to_owned(),
        Stay::Leaving => "it was leaving, to make room for another".to_owned(),
        Stay::TooMany => "the tick had as many moves as one may have".to_owned(),
        Stay::New => "no window had ended since it was mapped".to_owned(),
        Stay::NoRoom => "better nodes were full, and nothing there was to leave for it".to_owned(),
        Stay::NoGain { node, net_ns } => format!(
            "even node{node} would have lost {} by the end of the horizon",
            duration(-net_ns)
        ),
        Stay::Locked => "it had moved twice in a few windows and is locked".to_owned(),
        Stay::Stopped => "too many units moved back and forth, and all moves stop".to_owned(),
    }
}

fn became(result: Option<&MoveResult>, to: NodeId) -> String {
    match result {
        None => "is under way".to_owned(),
        Some(MoveResult::Done) => format!("reached node{to}"),
        Some(MoveResult::Failed(why)) => {
            let why = match why {
                None => "it has no memory any longer",
                Some(Failure::Busy) => "it was pinned or locked",
                Some(Failure::Shared) => "another process maps it too",
                Some(Failure::NoMemory) => "the kernel refused for want of room",
                Some(Failure::NoRoom) => "there was no room when its turn came",
                Some(Failure::Unpaired) => "the move that made room for it failed",
                Some(Failure::NoNode) => "there is no such node",
                Some(Failure::Permission) => "it is not ours to move",
                Some(Failure::Vanished) => "the process was gone",
                Some(Failure::Misplaced | Failure::Other) => "the kernel did not move it",
            };
            format!("did not: {why}")
        }
    }
}

/// `saving 1.5us/s`; what saves less than nothing costs.
fn effect(gain_ns_per_s: f64) -> String {
    if gain_ns_per_s > 0.0 {
        format!("saving {}", per_s(gain_ns_per_s))
    } else {
        format!("costing {}", per_s(gain_ns_per_s.abs()))
    }
}

fn per_s(ns: f64) -> String {
    format!("{}/s", duration(ns))
}

/// With three digits or so.
fn duration(ns: f64) -> String {
    match ns.abs() {
        ..1e3 => format!("{ns:.0}ns"),
        ..1e6 => format!("{:.1}us", ns / 1e3),
        ..1e9 => format!("{:.1}ms", ns / 1e6),
        _ => format!("{:.1}s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why() -> PageWhy {
        PageWhy {
            pid: 42,
            addr: 0x7f00_0000_1000,
            bytes: 4096,
            of_file: false,
            node: NodeId(2),
            tier: 3,
            tiers: 4,
            best: NodeId(0),
            accessor: Accessor::Node(NodeId(0)),
            accessed: 5,
            windows: 8,
            accesses_per_s: Some(63.0),
            lost_ns_per_s: Some(3200.0),
            last: None,
        }
    }

    fn decided(what: Decision) -> PageWhy {
        PageWhy { last: Some(LastDecision { ago_ms: 420, window: 9, what }), ..why() }
    }

    fn moved(reason: Reason, gain_ns_per_s: f64, result: Option<MoveResult>) -> PageWhy {
        let (from, to) = match reason {
            Reason::Demote => (NodeId(0), NodeId(2)),
            _ => (NodeId(2), NodeId(0)),
        };
        let (from, cost_ns) = (Some(from), 8000.0);
        decided(Decision::Moves { from, to, reason, gain_ns_per_s, cost_ns, result })
    }

    const SEEN: &str = "0x7f0000001000 of process 42 (4KiB, anonymous) is on node2, tier 3 of 4 \
                        for node0, whose CPUs accessed it in 5 of 8 windows \
                        (about 63/s, 3.2us/s more stall than on node0)";

    fn check(why: &PageWhy, expected: &str) {
        assert_eq!(sentence(why), format!("{SEEN}; {expected}."));
    }

    #[test]
    fn what_was_decided_last_has_its_figures() {
        check(&why(), "nothing was decided on it lately");
        check(
            &moved(Reason::Promote, 3200.0, Some(MoveResult::Done)),
            "0.4s ago it was to be promoted from node2 to node0, saving 3.2us/s for 8.0us, \
             and reached node0",
        );
        check(
            &moved(Reason::Demote, -20.0, Some(MoveResult::Failed(Some(Failure::Busy)))),
            "0.4s ago it was to be demoted from node0 to node2 to make room, \
             costing 20ns/s and 8.0us once, and did not: it was pinned or locked",
        );
        check(
            &moved(Reason::Promote, -1.0, None),
            "0.4s ago it was to be promoted from node2 to node0, costing 1ns/s for 8.0us, \
             and is under way",
        );
        check(
            &decided(Decision::Stays(Stay::NoGain { node: NodeId(0), net_ns: -7e6 })),
            "0.4s ago it stayed: even node0 would have lost 7.0ms by the end of the horizon",
        );
    }

    #[test]
    fn accesses_are_by_node_or_by_several_or_unknown() {
        let of = |change: &dyn Fn(&mut PageWhy)| {
            let mut why = why();
            change(&mut why);
            accesses(&why)
        };
        assert_eq!(
            of(&|why| (why.accessed, why.node) = (8, NodeId(0))),
            "for node0, whose CPUs accessed it in 8 of 8 windows (at least 63/s)"
        );
        assert_eq!(
            of(&|why| why.accessor = Accessor::Unknown),
            "for the machine: no access to it was seen"
        );
        assert_eq!(
            of(&|why| (why.accessor, why.accesses_per_s) = (Accessor::Several, None)),
            "for the machine: CPUs of several nodes accessed it in a window that has not ended"
        );
    }
}
