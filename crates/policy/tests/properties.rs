//! Any objects, any budgets: what holds of every decision.
//! In: objects and budgets by chance. Out: broken promises. Knows nothing of how it is decided.

mod world;

use proptest::prelude::*;
use tiercel_ledger::movement::Reason;
use world::{MIB, World, decide, machine, policy};

fn objects() -> impl Strategy<Value = String> {
    let object = (1u64..9, prop_oneof![Just("0"), Just("1"), Just("2"), Just("?")], 0u32..50);
    proptest::collection::vec(object, 1..12).prop_map(|objects| {
        let word = |(nth, (mib, node, accesses)): (usize, &(u64, &str, u32))| {
            format!("o{nth}:{mib}@{node}:{accesses}")
        };
        objects.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn executed_decisions_keep_the_budget(
        objects in objects(),
        fast_mib in 0u64..40,
        middle_mib in 1u64..40,
        prioritise in prop_oneof![Just("fifo"), Just("lru"), Just("apb"), Just("cpb")],
        gate in prop_oneof![Just("none"), Just("shadow:")],
    ) {
        let mut world = World::new(&objects);
        let machine = machine(&[(1000, 100.0), (middle_mib, 200.0), (1000, 300.0)]);
        let decision = decide(&world, &mut policy(prioritise, gate), &machine, fast_mib);
        let again = decide(&world, &mut policy(prioritise, gate), &machine, fast_mib);
        prop_assert_eq!(&decision, &again, "the same history gives the same decision");
        let mut promoting = false;
        for asked in &decision.moves {
            prop_assert_ne!(asked.from, Some(asked.to), "nothing moves to where it is");
            promoting |= asked.reason == Reason::Promote;
            prop_assert_eq!(promoting, asked.reason == Reason::Promote, "demotions come first");
        }
        let before = [0, 1].map(|node| world.on_node(node));
        world.execute(&decision);
        for (node, mib) in [(0, fast_mib), (1, middle_mib)] {
            // Shadow placements demote neither for births that may never come nor because a node
            // seems to have more than it can: the middle one has no budget.
            let has_budget = node == 0;
            let room = match gate {
                "none" => mib * MIB * 9 / 10,
                _ if has_budget => mib * MIB,
                _ => (mib * MIB).max(before[usize::from(node)]),
            };
            prop_assert!(world.on_node(node) <= room, "node {} holds too much", node);
        }
    }
}
