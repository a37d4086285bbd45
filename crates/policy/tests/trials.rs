//! Moves that pay go on, moves that do harm are taken back: a canary first, and then all.
//! In: a machine as described, and how fast its memory really is. Out: what moved, what was
//! concluded. Knows nothing of how either is done.

use tiercel_ledger::movement::{Failure, Outcome, Reason};
use tiercel_ledger::{Config as LedgerConfig, Ledger, Range};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_policy::{Budgets, Config, Decision, Interval, Limit, Policy, TrialResult, Verdict};
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

const MIB: u64 = 1 << 20;
const PID: u32 = 1;
/// Objects of 1 MiB; as many fit into the fast tier's budget as are hot.
const OBJECTS: u64 = 40;
const HOT: u64 = 10;

/// What nodes 0 and 1 really take, nanoseconds; and whether samples say so.
#[derive(Clone, Copy)]
struct Truth {
    latency_ns: [u32; 2],
    is_seen: bool,
    /// Instructions of an interval with nothing and with all hot objects in node 0.
    instructions: Option<[u64; 2]>,
    is_modelled: bool,
}

struct World {
    ledger: Ledger,
    policy: Policy,
    machine: Machine,
    truth: Truth,
    now_ms: u64,
    /// The hot ones are no longer used.
    is_over: bool,
    /// The hot ones are no longer used, and all others are hot.
    is_turned: bool,
    /// Most of what is moved to node 0 finds no room.
    is_full: bool,
    judged: Vec<TrialResult>,
}

impl World {
    /// Everything begins in node 1, which the machine believes to be slow.
    fn new(truth: Truth, gate: &str) -> World {
        let node = |id: u16, latency_ns: f64| {
            let mut node = Node::new(NodeId(id), 64 * MIB);
            node.tier = Some(id);
            node.figures.read_latency_ns = Some(latency_ns);
            node.figures.write_latency_ns = Some(latency_ns);
            node
        };
        let nodes = vec![node(0, 100.0), node(1, 300.0)];
        let machine = Machine { name: "test".to_owned(), nodes, ..Machine::default() };
        let mut ledger = Ledger::new(LedgerConfig::default(), 0).expect("good");
        ledger.process_born(PID).expect("new");
        let config = Config {
            trigger: "time:ticks=1".parse().expect("a trigger"),
            gate: gate.parse().expect("a gate"),
            ..Config::default()
        };
        let policy = Policy::new(config).expect("good");
        let (is_over, is_turned, is_full, judged) = (false, false, false, Vec::new());
        let now_ms = 0;
        let mut world =
            World { ledger, policy, machine, truth, now_ms, is_over, is_turned, is_full, judged };
        for nth in 0..OBJECTS {
            let (addr, bytes, site, arena) = (World::addr(nth), MIB, 0, None);
            let version = Version { carve: nth as u32 + 1, generation: 0 };
            let (flags, time_ns) = (Flags(0), 0);
            let record = Record::Born { addr, bytes, site, version, arena, flags, time_ns };
            world.ledger.apply(PID, &record);
        }
        world.ledger.tick(2000);
        world.now_ms = 2000;
        for nth in 0..OBJECTS {
            let range = Range { pid: PID, addr: World::addr(nth), bytes: MIB };
            world.ledger.set_residency(range, &[(NodeId(1), MIB)], 2000);
        }
        world
    }

    fn addr(nth: u64) -> u64 {
        (1 << 30) + nth * 2 * MIB
    }

    fn node_of(&self, nth: u64) -> u16 {
        let extent = self.ledger.find(PID, World::addr(nth)).expect("lives");
        extent.residency.main_node().expect("known").0
    }

    fn hot_in_fast(&self) -> u64 {
        (0..HOT).filter(|nth| self.node_of(*nth) == 0).count() as u64
    }

    /// One interval: accesses, a tick, a decision, perfect moves.
    fn step(&mut self) -> Decision {
        for nth in 0..OBJECTS {
            let latency_ns = self.truth.latency_ns[usize::from(self.node_of(nth))];
            let samples = match (nth < HOT) != self.is_turned {
                true if self.is_over => 0,
                true => 20,
                false => u64::from(!self.is_turned),
            };
            for at in 0..samples {
                self.ledger.sample(&Sample {
                    from_ns: self.now_ms * 1_000_000,
                    until_ns: self.now_ms * 1_000_000,
                    pid: PID,
                    tid: 0,
                    // All over the object, so that it is not split.
                    addr: World::addr(nth) + (self.now_ms * 37 + at * MIB / samples) % MIB,
                    kind: AccessKind::Read,
                    latency_ns: self.truth.is_seen.then_some(latency_ns),
                    node: None,
                    weight: 10_000,
                    around: None,
                    cpu: None,
                });
            }
        }
        self.now_ms += 2000;
        let instructions = self.truth.instructions.map(|[none, all]| {
            let (none, all, share) = (none as f64, all as f64, self.hot_in_fast() as f64);
            (none + (all - none) * share / HOT as f64) as u64
        });
        let interval = Interval {
            llc_misses: instructions,
            instructions,
            is_modelled: self.truth.is_modelled,
            ..Interval::of(&self.ledger.tick(self.now_ms))
        };
        let budgets = Budgets::fast(Limit::Bytes(12 * MIB));
        let decision = self.policy.tick(&self.ledger, &self.machine, &budgets, &interval);
        for asked in &decision.moves {
            let is_short = self.is_full && asked.to == NodeId(0);
            let moved_bytes = if is_short { asked.bytes / 4 } else { asked.bytes };
            let short = is_short.then_some((Failure::NoMemory, asked.bytes - moved_bytes));
            let outcome = Outcome {
                moved_bytes,
                resident_bytes: moved_bytes,
                failed: short.into_iter().collect(),
                took_ns: 700_000,
                ..Outcome::of(asked.clone())
            };
            self.ledger.outcome(&outcome);
            self.policy.outcome(&outcome);
        }
        self.judged.extend(decision.judged.clone());
        decision
    }

    fn verdicts(&self) -> Vec<(bool, Verdict)> {
        self.judged.iter().map(|judged| (judged.canary, judged.verdict)).collect()
    }
}

const HONEST: Truth =
    Truth { latency_ns: [100, 300], is_seen: true, instructions: None, is_modelled: false };

#[test]
fn a_canary_goes_first_then_larger_shares_and_then_all() {
    let mut world = World::new(HONEST, "benefit");
    let first = world.step();
    let promoted = first.moves.iter().filter(|asked| asked.reason == Reason::Promote).count();
    assert!((1..=2).contains(&promoted), "a tenth of 10 MiB: {promoted}");
    (0..12).for_each(|_| drop(world.step()));
    assert_eq!(world.hot_in_fast(), HOT);
    let verdicts = world.verdicts();
    assert!(verdicts.iter().all(|(_, verdict)| *verdict == Verdict::Paid), "{verdicts:?}");
    let moved: Vec<u64> = world.judged.iter().map(|judged| judged.moves).collect();
    assert!(verdicts[0].0 && moved[0] < moved[1] && moved[1] < moved[2], "{moved:?}");
    // Expected against measured: the machine's figures are true, so they agree.
    let judged = &world.judged[1];
    let ratio = judged.measured_ns_per_s.expect("seen") / judged.expected_ns_per_s;
    assert!((0.5..2.0).contains(&ratio), "{judged:?}");
}

#[test]
fn moves_to_what_is_slower_in_truth_are_taken_back_and_held() {
    let truth = Truth { latency_ns: [400, 300], ..HONEST };
    let mut world = World::new(truth, "benefit");
    let mut promotions = 0;
    for _ in 0..60 {
        let decision = world.step();
        promotions += decision.moves.iter().filter(|m| m.reason == Reason::Promote).count();
        assert!(world.hot_in_fast() <= 2, "no more than a canary is ever there");
    }
    assert_eq!(world.hot_in_fast(), 0, "all was taken back");
    assert!(world.verdicts().iter().all(|verdict| *verdict == (true, Verdict::TakenBack)));
    // 20 s, 40 s, 80 s apart: in 2 minutes three at most.
    let trials = world.judged.len();
    assert!((2..=3).contains(&trials), "{trials}");
    assert!(world.judged[0].measured_ns_per_s.expect("seen") < 0.0);
    assert!(promotions <= 2 * trials);
}

#[test]
fn a_fast_tier_that_is_no_faster_does_not_pay_and_neither_would_going_back() {
    let mut world = World::new(Truth { latency_ns: [300, 300], ..HONEST }, "benefit");
    world.step();
    let canary = world.hot_in_fast();
    (0..20).for_each(|_| drop(world.step()));
    // So cheap are moves here that one sample more would be worth them. But the latencies that
    // were seen leave nothing to gain.
    assert_eq!(world.verdicts(), [(true, Verdict::Unclear)]);
    assert_eq!(world.hot_in_fast(), canary, "it stays, and nothing follows");
}

#[test]
fn a_move_without_later_accesses_did_not_pay() {
    // Instructions that stay the same would say that nothing is lost.
    let mut world = World::new(Truth { instructions: Some([1_000_000; 2]), ..HONEST }, "benefit");
    world.step();
    world.is_over = true;
    (0..13).for_each(|_| drop(world.step()));
    assert_ne!(world.judged[0].verdict, Verdict::Paid);
    assert_eq!(world.judged[0].measured_ns_per_s, Some(0.0));
}

#[test]
fn what_is_used_in_turns_is_judged_when_its_turn_comes() {
    let mut world = World::new(HONEST, "benefit");
    world.step();
    world.is_over = true;
    (0..5).for_each(|_| drop(world.step()));
    assert_eq!(world.verdicts(), [], "nothing can be said yet");
    world.is_over = false;
    (0..3).for_each(|_| drop(world.step()));
    assert_eq!(world.verdicts()[0], (true, Verdict::Paid));
}

#[test]
fn harm_is_not_waited_for() {
    let mut world = World::new(HONEST, "benefit");
    for nth in HOT..HOT + 12 {
        let range = Range { pid: PID, addr: World::addr(nth), bytes: MIB };
        world.ledger.set_residency(range, &[(NodeId(0), MIB)], world.now_ms);
    }
    let decision = world.step();
    assert!(decision.moves.iter().any(|asked| asked.reason == Reason::Demote), "one made room");
    // What was promoted is not used any more; but what made room for it is.
    world.is_turned = true;
    (0..3).for_each(|_| drop(world.step()));
    assert_eq!(world.verdicts(), [(true, Verdict::TakenBack)]);
}

#[test]
fn what_found_no_room_says_nothing_of_moving() {
    let mut world = World::new(HONEST, "benefit");
    world.is_full = true;
    world.step();
    world.is_full = false;
    (0..4).for_each(|_| drop(world.step()));
    assert_eq!(world.verdicts()[0], (true, Verdict::Unmeasured));
    assert!(world.hot_in_fast() > 0, "nothing is held back: {:?}", world.judged);
}

#[test]
fn what_paid_once_is_taken_back_when_it_no_longer_does() {
    let mut world = World::new(HONEST, "benefit");
    world.step();
    let canary = world.hot_in_fast();
    world.step();
    world.step();
    assert_eq!(world.verdicts(), [(true, Verdict::Paid)]);
    world.truth.latency_ns = [900, 300];
    (0..8).for_each(|_| drop(world.step()));
    assert!(world.verdicts().contains(&(true, Verdict::TakenBack)), "{:?}", world.judged);
    assert_eq!(world.hot_in_fast(), canary, "the trial's moves, not those before");
}

#[test]
fn without_latencies_instructions_show_a_loss() {
    let blind = Truth { is_seen: false, ..HONEST };
    let truth = Truth { instructions: Some([1_000_000, 700_000]), ..blind };
    let mut world = World::new(truth, "benefit:canary=0.5");
    // Something to compare with: nothing is hot yet that pays.
    (0..30).for_each(|_| drop(world.step()));
    assert!(world.verdicts().contains(&(true, Verdict::TakenBack)), "{:?}", world.judged);
    let truth = Truth { instructions: Some([700_000, 1_000_000]), ..blind };
    let mut world = World::new(truth, "benefit:canary=0.5");
    (0..12).for_each(|_| drop(world.step()));
    assert_eq!(world.hot_in_fast(), HOT);
}

#[test]
fn without_measurements_nothing_is_held_back_and_the_verdict_says_so() {
    for truth in [Truth { is_seen: false, ..HONEST }, Truth { is_modelled: true, ..HONEST }] {
        let mut world = World::new(truth, "benefit");
        world.step();
        assert_eq!(world.hot_in_fast(), HOT);
        (0..3).for_each(|_| drop(world.step()));
        assert_eq!(world.verdicts(), [(false, Verdict::Unmeasured)]);
        assert_eq!(world.hot_in_fast(), HOT);
    }
}

#[test]
fn without_a_canary_or_a_gate_nothing_is_held_back() {
    for gate in ["none", "benefit:canary=0"] {
        let mut world = World::new(Truth { latency_ns: [400, 300], ..HONEST }, gate);
        world.step();
        assert_eq!(world.hot_in_fast(), HOT, "{gate}");
    }
}
