//! A decision over very many extents of one user pauses, so that others are served.
//! What is counted is work, not time.

use tiercel_ledger::{AccessValue, Config as LedgerConfig, Ledger, PIECE_UNITS, Pace};
use tiercel_machine::{Machine, Node, NodeId};
use tiercel_policy::{Budgets, Config, Decision, Interval, Limit, Policy};
use tiercel_wire::{AccessKind, Flags, Record, Sample, Version};

const OBJECT: u64 = 4096;
const PID: u32 = 1;

/// More than six pieces; with one in seven hot, more moves than one decision may have.
const OBJECTS: u64 = 7 * PIECE_UNITS as u64;

/// A ledger that is changed in each pause, and the most extents that were looked at between two.
struct Paused {
    ledger: Ledger,
    units: usize,
    shown: u64,
    shown_max: u64,
    pauses: u64,
    in_pause: fn(&mut Ledger, u64),
}

impl Paused {
    fn new(ledger: Ledger, in_pause: fn(&mut Ledger, u64)) -> Paused {
        let shown = ledger.extents_shown();
        Paused { ledger, units: 0, shown, shown_max: 0, pauses: 0, in_pause }
    }

    fn most_shown(&mut self) -> u64 {
        let shown = self.ledger.extents_shown();
        self.shown_max = self.shown_max.max(shown - self.shown);
        self.shown = shown;
        self.shown_max
    }
}

impl Pace for Paused {
    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn worked(&mut self, units: usize) {
        assert!(units <= PIECE_UNITS, "{units} units without a pause");
        self.units += units;
        if self.units >= PIECE_UNITS {
            self.units = 0;
            self.pauses += 1;
            self.most_shown();
            (self.in_pause)(&mut self.ledger, self.pauses);
            self.shown = self.ledger.extents_shown();
        }
    }
}

fn addr(nth: u64) -> u64 {
    0x7000_0000_0000 + nth * 2 * OBJECT
}

fn born(ledger: &mut Ledger, nth: u64) {
    let (version, time_ns) = (version(nth), ledger.now_ms() * 1_000_000);
    let (arena, flags) = (Some(u8::from(!nth.is_multiple_of(5))), Flags(0));
    let (addr, bytes, site) = (addr(nth), OBJECT, (nth % 100) as u32);
    ledger.apply(PID, &Record::Born { addr, bytes, site, version, arena, flags, time_ns });
}

fn version(nth: u64) -> Version {
    Version { carve: nth as u32, generation: 0 }
}

fn died(ledger: &mut Ledger, nth: u64) {
    let (addr, bytes, version, flags) = (addr(nth), OBJECT, version(nth), Flags(0));
    ledger.apply(PID, &Record::Died { addr, bytes, version, flags, time_ns: 0 });
}

/// A fifth of the objects in fast memory, one in seven of all hot.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new(LedgerConfig::default(), 0).expect("a good config");
    ledger.set_arenas(&[Some(NodeId(0)), Some(NodeId(1))]);
    ledger.set_values(AccessValue::of(&machine()).expect("two tiers"));
    ledger.process_born(PID).expect("a new process");
    (0..OBJECTS).for_each(|nth| born(&mut ledger, nth));
    ledger.tick(2000);
    // One sample would be no evidence.
    for nth in (0..OBJECTS).step_by(7).flat_map(|nth| [nth; 3]) {
        ledger.sample(&Sample {
            from_ns: 2_000_000_000,
            until_ns: 2_000_000_000,
            pid: PID,
            tid: 0,
            addr: addr(nth),
            kind: AccessKind::Read,
            latency_ns: Some(100 + nth as u32 % 400),
            node: None,
            weight: 1 << 20,
            around: None,
            cpu: None,
            by: None,
        });
    }
    ledger.tick(4000);
    ledger
}

fn machine() -> Machine {
    let node = |(id, latency_ns): (u16, f64)| {
        let mut node = Node::new(NodeId(id), 1 << 42);
        node.tier = Some(id);
        node.figures.read_latency_ns = Some(latency_ns);
        node
    };
    let nodes = [(0, 100.0), (1, 300.0)].map(node).to_vec();
    Machine { name: "pieces".to_owned(), nodes, ..Machine::default() }
}

fn policy(prioritise: &str, gate: &str) -> Policy {
    let config = Config {
        prioritise: prioritise.parse().expect("a routine"),
        trigger: "time:ticks=1".parse().expect("a routine"),
        gate: gate.parse().expect("a routine"),
        ..Config::default()
    };
    Policy::new(config).expect("a good config")
}

const INTERVAL: Interval = Interval {
    elapsed_ms: 2000,
    allocated_bytes: 0,
    llc_misses: None,
    instructions: None,
    is_modelled: false,
};

fn decide(policy: &mut Policy, pace: &mut dyn Pace) -> Decision {
    let budgets = Budgets::fast(Limit::ShareOfPeak(0.25));
    policy.tick_in_pieces(pace, &machine(), &budgets, &INTERVAL)
}

#[test]
fn a_decision_with_pauses_is_the_same_as_without() {
    for (prioritise, gate) in [("apb", "none"), ("cpb", "none"), ("apb", "shadow:")] {
        let mut paused = Paused::new(ledger(), |_, _| {});
        let in_pieces = decide(&mut policy(prioritise, gate), &mut paused);
        assert!(paused.pauses > 7, "{} pauses", paused.pauses);
        // Weighing a move takes two looks.
        let most_shown = paused.most_shown();
        assert!(most_shown <= 2 * PIECE_UNITS as u64, "{most_shown} extents between two pauses");
        let budgets = Budgets::fast(Limit::ShareOfPeak(0.25));
        let at_once =
            policy(prioritise, gate).tick(&paused.ledger, &machine(), &budgets, &INTERVAL);
        assert!(!at_once.moves.is_empty(), "{prioritise} {gate} moves something");
        assert_eq!(in_pieces, at_once);
        let best = policy(prioritise, gate).best_in_pieces(&mut paused, &machine(), &budgets);
        assert_eq!(best, policy(prioritise, gate).best(&paused.ledger, &machine(), &budgets));
    }
}

#[test]
fn what_dies_in_a_pause_is_not_moved_and_what_takes_its_number_neither() {
    let mut paused = Paused::new(ledger(), |ledger, pauses| {
        // Each pause a thousand objects die; others take their numbers, and become rows.
        ledger.advance(4000 + pauses * 100);
        let some = pauses * 1000..(pauses + 1) * 1000;
        some.clone().for_each(|nth| died(ledger, nth));
        some.for_each(|nth| born(ledger, OBJECTS + nth));
        ledger.make_rows(u64::MAX);
    });
    let decision = decide(&mut policy("apb", "none"), &mut paused);
    assert!(paused.pauses > 7 && !decision.moves.is_empty());
    let early = decision.moves.iter().filter(|asked| asked.addr >= addr(OBJECTS)).count();
    assert_eq!(early, 0, "moves of objects that were born while it was decided");
}
