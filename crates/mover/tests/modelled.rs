//! The modelled mover's accounting, against a slow obvious model (one node per byte).

use std::collections::BTreeMap;

use proptest::prelude::*;
use tiercel_ledger::movement::{Failure, Move, Reason};
use tiercel_machine::{Machine, NodeId};
use tiercel_mover::{ModelledMover, Mover, Range};

const FAST: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(1);

/// Two nodes of 100 bytes; births fill 40 bytes of the first before the second.
fn mover() -> ModelledMover {
    let machine = Machine::from_toml(
        r#"
        name = "toy"
        [[node]]
        id = 0
        capacity = 100
        cpus = "0"
        figures = { read_gb_s = 100.0, write_gb_s = 50.0 }
        [[node]]
        id = 1
        capacity = 100
        figures = { read_gb_s = 10.0, write_gb_s = 5.0 }
        "#,
    );
    ModelledMover::new(machine.unwrap(), vec![(FAST, 40), (SLOW, 100)])
}

fn range(addr: u64, bytes: u64) -> Range {
    Range { addr, bytes }
}

fn request(pid: u32, addr: u64, bytes: u64, to: NodeId) -> Move {
    let (reason, from) = (Reason::Promote, None);
    Move { pid, addr, bytes, from, to, reason, gain_ns_per_s: 0.0, cost_ns: 0.0 }
}

#[test]
fn births_fill_the_first_node_up_to_its_share() {
    let mut mover = mover();
    mover.born(1, range(0, 30), None);
    mover.born(1, range(30, 30), None);
    mover.born(2, range(0, 10), None);
    mover.born(2, range(10, 5), Some(FAST));
    let answer = mover.residency(1, &[range(0, 70)]).remove(0).unwrap();
    assert_eq!((answer.nodes, answer.absent_bytes), (vec![(FAST, 30), (SLOW, 30)], 10));
    assert_eq!((mover.used_bytes(FAST), mover.used_bytes(SLOW)), (45, 30));
    mover.died(1, range(0, 10));
    mover.gone(2);
    assert_eq!((mover.used_bytes(FAST), mover.used_bytes(SLOW)), (20, 30));
}

#[test]
fn moves_are_accounted_for_and_cost_what_copying_costs() {
    let mut mover = mover();
    mover.born(1, range(0, 60), Some(SLOW));
    let outcome = mover.execute(&[request(1, 20, 40, FAST)]).remove(0);
    assert_eq!((outcome.moved_bytes, outcome.resident_bytes), (40, 40));
    // One OS page begun, 2000 ns, and 40 bytes at the 10 GB/s that the slow node can be read with.
    assert_eq!(outcome.took_ns, 2004);
    assert_eq!((mover.used_bytes(FAST), mover.used_bytes(SLOW)), (40, 20));
}

#[test]
fn memory_of_unknown_birth_counts_as_touched_first_when_it_moves() {
    let mut mover = mover();
    let outcomes = mover.execute(&[request(1, 0, 40, FAST), request(1, 40, 10, FAST)]);
    let moved: Vec<u64> = outcomes.iter().map(|outcome| outcome.moved_bytes).collect();
    assert_eq!(moved, [0, 10], "the first fits where it is wanted, the second was born slow");
    assert_eq!(mover.used_bytes(FAST), 50);
}

#[test]
fn a_full_node_and_a_missing_node() {
    let mut mover = mover();
    mover.born(1, range(0, 90), Some(FAST));
    mover.born(1, range(200, 20), Some(SLOW));
    let outcomes = mover.execute(&[request(1, 200, 20, FAST), request(1, 200, 20, NodeId(9))]);
    assert_eq!(outcomes[0].failed, [(Failure::NoMemory, 20)]);
    assert_eq!(outcomes[1].failed, [(Failure::NoNode, 20)]);
}

#[test]
fn the_modelled_mover_names_its_machine() {
    let mover = mover();
    assert!(mover.is_modelled());
    assert!(mover.note().contains("modelled machine"));
    assert!(!tiercel_mover::KernelMover::new().is_modelled());
}

#[derive(Clone, Debug)]
enum Step {
    Born(u64, u64, NodeId),
    Died(u64, u64),
    Move(u64, u64, NodeId),
}

fn step() -> impl Strategy<Value = Step> {
    let node = (0u16..2).prop_map(NodeId);
    (0u64..60, 1u64..30, node, 0..3).prop_map(|(addr, bytes, node, kind)| match kind {
        0 => Step::Born(addr, bytes, node),
        1 => Step::Died(addr, bytes),
        _ => Step::Move(addr, bytes, node),
    })
}

proptest! {
    #[test]
    fn intervals_agree_with_one_node_per_byte(steps in proptest::collection::vec(step(), 1..60)) {
        let mut mover = mover();
        let mut model = BTreeMap::<u64, NodeId>::new();
        for step in steps {
            match step {
                Step::Born(addr, bytes, node) => {
                    mover.born(1, range(addr, bytes), Some(node));
                    model.extend((addr..addr + bytes).map(|byte| (byte, node)));
                }
                Step::Died(addr, bytes) => {
                    mover.died(1, range(addr, bytes));
                    model.retain(|byte, _| !(addr..addr + bytes).contains(byte));
                }
                Step::Move(addr, bytes, node) => {
                    // Only what is accounted for: births by first touch have a test of their own.
                    let known: Vec<u64> =
                        (addr..addr + bytes).filter(|byte| model.contains_key(byte)).collect();
                    let moves: Vec<Move> =
                        known.iter().map(|&byte| request(1, byte, 1, node)).collect();
                    let moved: u64 = mover.execute(&moves).iter().map(|o| o.moved_bytes).sum();
                    let elsewhere = known.iter().filter(|byte| model[byte] != node).count();
                    prop_assert_eq!(moved, elsewhere as u64);
                    model.extend(known.into_iter().map(|byte| (byte, node)));
                }
            }
            for node in [FAST, SLOW] {
                let bytes = model.values().filter(|its| **its == node).count() as u64;
                prop_assert_eq!(mover.used_bytes(node), bytes);
            }
        }
        for byte in 0..100 {
            let answer = mover.residency(1, &[range(byte, 1)]).remove(0).unwrap();
            let expected: Vec<_> = model.get(&byte).map(|node| (*node, 1)).into_iter().collect();
            prop_assert_eq!(answer.nodes, expected);
        }
    }
}
