//! Shadow placements, from accesses in words to moves in words: what moves, when, and at what cost.
//! In: objects, accesses, how fast the program really gets. Out: decisions. Knows nothing of how
//! they are made.

use expect_test::expect;
use tiercel_ledger::movement::{Failure, Move, Outcome, Reason};
use tiercel_machine::{Machine, NodeId};
use tiercel_policy::{Budgets, Config, Decision, Limit, Policy, ShadowReport};

mod world;
use world::{MIB, World, check, decide, machine};

/// Nanoseconds that a moved byte takes here: 4 MiB take 8.4 ms of a tick of 2 s.
const MOVE_NS_PER_BYTE: f64 = 2.0;

/// Ticks of a program on two nodes.
struct Run {
    world: World,
    policy: Policy,
    machine: Machine,
    fast_mib: u64,
    moved: Vec<String>,
    report: ShadowReport,
    /// An object that cannot be moved.
    pinned: Option<&'static str>,
}

impl Run {
    fn new(objects: &str, fast_mib: u64, gate: &str) -> Run {
        let gate = gate.parse().expect("a gate");
        let policy = Policy::new(Config { gate, ..Config::default() }).expect("good");
        let machine = machine(&[(1000, 100.0), (10_000, 300.0)]);
        let (world, moved) = (World::new(objects), Vec::new());
        let report = ShadowReport::default();
        Run { world, policy, machine, fast_mib, moved, report, pinned: None }
    }

    /// A tick in which objects had so many samples; executes what is asked.
    fn tick(&mut self, accesses: &[(&str, u32)]) -> Decision {
        for (name, count) in accesses {
            let addr = self.world.addr(name);
            self.world.access(addr, *count);
        }
        self.world.tick();
        let budgets = Budgets::fast(Limit::Bytes(self.fast_mib * MIB));
        let interval = self.world.last;
        let decision = self.policy.tick(&self.world.ledger, &self.machine, &budgets, &interval);
        for asked in &decision.moves {
            let is_pinned = self.pinned == Some(self.world.name_at(asked.addr));
            let outcome = if is_pinned { refused(asked) } else { executed(asked) };
            self.world.ledger.outcome(&outcome);
            self.policy.outcome(&outcome);
            let word = if asked.reason == Reason::Demote { "-" } else { "+" };
            self.moved.push(format!("{word}{}", self.world.name_at(asked.addr)));
        }
        self.report = decision.shadows.first().cloned().unwrap_or_default();
        decision
    }

    fn ticks(&mut self, count: usize, accesses: &[(&str, u32)]) {
        (0..count).for_each(|_| drop(self.tick(accesses)));
    }

    fn moved(&mut self) -> String {
        std::mem::take(&mut self.moved).join(" ")
    }
}

fn executed(asked: &Move) -> Outcome {
    let took_ns = (asked.bytes as f64 * MOVE_NS_PER_BYTE) as u64;
    let (moved_bytes, resident_bytes) = (asked.bytes, asked.bytes);
    Outcome { moved_bytes, resident_bytes, took_ns, ..Outcome::of(asked.clone()) }
}

fn refused(asked: &Move) -> Outcome {
    Outcome { failed: vec![(Failure::Shared, asked.bytes)], ..Outcome::of(asked.clone()) }
}

#[test]
fn what_cannot_be_moved_is_asked_for_less_and_less_often() {
    for gate in ["shadow:", "none"] {
        let mut run = Run::new("a:4@0:0 b:4@1:0 c:4@0:0", 20, gate);
        run.pinned = Some("b");
        run.ticks(64, &[("b", 100)]);
        // At ticks of 2 s after pauses of 1, 2, 4, 8, 16 and 32 s.
        assert_eq!(run.moved(), "+b +b +b +b +b +b +b", "{gate}");
        run.pinned = None;
        run.ticks(40, &[("b", 100)]);
        assert_eq!(run.moved(), "+b", "{gate}");
    }
}

#[test]
fn what_cannot_leave_makes_no_room() {
    let mut run = Run::new("a:4@0:0 b:4@1:0", 4, "shadow:");
    run.pinned = Some("a");
    let (addr, pid) = (run.world.addr("b"), world::PID);
    let range = tiercel_ledger::Range { pid, addr, bytes: 4 * MIB };
    for _ in 0..32 {
        run.ticks(1, &[("b", 100)]);
        // There was no room for it.
        run.world.ledger.set_residency(range, &[(NodeId(1), 4 * MIB)], run.world.now_ms);
    }
    assert_eq!(run.moved(), ["-a +b"; 6].join(" "), "after 1, 2, 4, 8 and 16 s");
}

#[test]
fn what_pays_moves_and_what_does_not_stays() {
    // 2 MiB cost 2 x 2^20 x 0.7 ns = 1.47 ms; 29 samples are worth 1.45 ms, in a second at most.
    check("apb", "shadow:", 10, "a:2@1:29", expect!["promote a 1 -> 0"]);
    // One sample may be chance: less a standard deviation it is worth nothing.
    check("apb", "shadow:", 10, "a:2@1:1", expect![[r#""#]]);
    check("apb", "shadow:", 10, "a:2@0:29", expect![[r#""#]]);
}

#[test]
fn who_leaves_is_paid_for() {
    // b would lose as much as a gains.
    let left = expect!["left 1 (2 MiB): CostExceedsBenefit"];
    check("apb", "shadow:", 2, "a:2@1:101 b:2@0:100", left);
    check(
        "apb",
        "shadow:",
        2,
        "a:2@1:200 b:2@0:1",
        expect![[r#"
            demote b 0 -> 1
            promote a 1 -> 0"#]],
    );
}

#[test]
fn the_budget_is_kept_whether_it_pays_or_not() {
    check("apb", "shadow:", 4, "a:2@0:9 b:2@0:8 c:2@0:7", expect!["demote c 0 -> 1"]);
}

#[test]
fn what_the_budget_drives_out_costs_no_bank() {
    // All four were born fast; the budget has room for one.
    let mut run = Run::new("a:4@0:0 b:4@0:0 c:4@0:0 d:4@0:0", 4, "shadow:loss=0");
    run.ticks(1, &[]);
    assert_eq!(run.moved().len(), "-b -c -d".len(), "three leave");
    let ShadowReport { saved_ns, spent_ns, .. } = run.report;
    assert!(spent_ns <= 0.0 && saved_ns == 0.0, "{:?}", run.report);
    // Whichever stayed, the hot one of them is there soon.
    run.ticks(10, &[("d", 100)]);
    let (addr, pid) = (run.world.addr("d"), world::PID);
    let extent = run.world.ledger.find(pid, addr).expect("lives");
    assert_eq!(extent.residency.main_node(), Some(NodeId(0)), "{:?}", run.report);
}

#[test]
fn the_rate_is_limited() {
    // 2 s at 1 MiB/s.
    check(
        "apb",
        "shadow:bytes_per_s=1MiB",
        10,
        "a:2@1:100 b:2@1:99",
        expect![[r#"
            promote a 1 -> 0
            left 1 (2 MiB): RateLimit"#]],
    );
}

#[test]
fn never_scores_and_moves_nothing() {
    let mut run = Run::new("a:4@0:0 b:4@1:100", 4, "shadow:");
    let config = Config { trigger: tiercel_policy::Trigger::Never, ..Config::default() };
    run.policy = Policy::new(config).expect("good");
    run.ticks(10, &[("b", 100)]);
    assert_eq!(run.moved(), "");
    assert!(run.report.lead_ns > 10.0 * 5e6 * 0.5, "{:?}", run.report);
}

#[test]
fn what_turns_hot_replaces_what_was() {
    let mut run = Run::new("a:4@0:0 b:4@1:0", 4, "shadow:");
    run.ticks(10, &[("b", 100)]);
    assert_eq!(run.moved(), "-a +b");
    assert!(run.report.saved_ns > 2.0 * run.report.spent_ns, "{:?}", run.report);
    run.ticks(20, &[("a", 100)]);
    assert_eq!(run.moved(), "-b +a");
    run.ticks(20, &[("a", 100), ("b", 99)]);
    assert_eq!(run.moved(), "", "they are alike: an exchange would not pay");
}

#[test]
fn what_brings_nothing_costs_no_more_than_may_be_lost() {
    // Each time that b was hot for a tick it is not for the next one, and the other way round.
    for (loss, most_ns) in [("shadow:loss=0.01", 0.01 * 122e9), ("shadow:loss=0", 1.0)] {
        let mut run = Run::new("a:4@0:0 b:4@1:0", 4, loss);
        for nth in 0..60 {
            let hot = if nth % 2 == 0 { "b" } else { "a" };
            run.tick(&[(hot, 4)]);
        }
        let ShadowReport { saved_ns, spent_ns, .. } = run.report;
        assert!(spent_ns - saved_ns <= most_ns, "{loss}: {:?}", run.report);
    }
}

#[test]
fn what_an_extent_was_is_known_after_it_was_split() {
    let mut run = Run::new("a:64@0:0 b:64@1:0", 64, "shadow:");
    run.ticks(10, &[("b", 2000)]);
    assert_eq!(run.moved(), "-a +b");
    // Sixteenths of the new budget: 4 MiB each.
    run.world.ledger.fit_extents(64 * MIB);
    run.world.tick();
    run.ticks(3, &[("b", 2000)]);
    let (spent, saved) = (run.report.spent_ns, run.report.saved_ns);
    run.ticks(3, &[("b", 2000)]);
    assert_eq!(run.report.spent_ns, spent, "it lies where it should: {:?}", run.moved);
    assert!(run.report.saved_ns > saved, "and still saves what it did");
}

#[test]
fn each_boundary_between_tiers_has_its_own_placement() {
    let mut world = World::new("a:4@2:0 b:4@0:0 c:4@1:0 d:4@2:0");
    let machine = machine(&[(1000, 100.0), (4, 200.0), (1000, 300.0)]);
    let config = Config { gate: "shadow:".parse().expect("a gate"), ..Config::default() };
    let mut policy = Policy::new(config).expect("good");
    for _ in 0..10 {
        for (name, count) in [("a", 400), ("d", 200)] {
            let addr = world.addr(name);
            world.access(addr, count);
        }
        world.tick();
        let decision = decide(&world, &mut policy, &machine, 4);
        assert_eq!(decision.shadows.len(), 2);
        world.execute(&decision);
    }
    let at = |name: &str| {
        world.ledger.find(world::PID, world.addr(name)).expect("lives").residency.main_node()
    };
    assert_eq!(["a", "d"].map(at), [Some(NodeId(0)), Some(NodeId(1))]);
}
