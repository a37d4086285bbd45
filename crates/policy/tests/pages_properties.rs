//! Any units on any nodes: what holds of every decision of OS-page tiering.
//! In: units by chance. Out: broken promises. Knows nothing of how it is decided.

#[path = "pages/model.rs"]
mod model;

use model::{Model, OS_PAGE, estimate, places, tiering, unit};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};
use tiercel_ledger::regions::{Accessor, GroupId, Unit};
use tiercel_machine::NodeId;
use tiercel_policy::pages::Mode;

fn units() -> impl Strategy<Value = Vec<Unit>> {
    let accessor = prop_oneof![
        4 => (0u16..2).prop_map(|node| Accessor::Node(NodeId(node))),
        1 => Just(Accessor::Several),
        1 => Just(Accessor::Unknown),
    ];
    let one = (0u16..4, 0u8..=8, accessor, 0u16..3, any::<bool>());
    proptest::collection::vec(one, 1..60).prop_map(|all| {
        let unit = |(nth, (node, level, accessor, group, of_file)): (u64, _)| Unit {
            group: GroupId(group),
            of_file,
            ..unit(nth, node, level, accessor)
        };
        (0..).zip(all).map(unit).collect()
    })
}

/// What accesses to all units cost a second, by the estimate.
fn stall_ns_per_s(units: &[Unit]) -> f64 {
    let machine = model::machine();
    let latency_ns = |from: u16, node: NodeId| {
        machine.figures(Some(NodeId(from)), node).read_latency_ns.expect("given")
    };
    let one = |unit: &Unit| {
        let ns = match unit.accessor {
            Accessor::Node(from) => latency_ns(from.0, unit.node),
            _ => (latency_ns(0, unit.node) + latency_ns(1, unit.node)) / 2.0,
        };
        estimate().rate_per_s(unit) * ns / estimate().parallelism
    };
    units.iter().map(one).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The model asserts that each move finds room when its turn comes.
    #[test]
    fn moves_find_room_in_their_order_and_reserves_outlast_a_tick(
        units in units(), free in proptest::array::uniform4(0u64..40), nth in 0usize..6
    ) {
        let mode = Mode::ALL[nth];
        let (mut tiering, reserve) = tiering(mode);
        let mut model = Model::new(units.clone(), free);
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, units, rooms, 1);
        let before = model.free.clone();
        model.carry_out(&mut tiering, &decision, 1);
        let moved: HashSet<_> = decision.moves.iter().map(|one| one.addr).collect();
        prop_assert_eq!(moved.len(), decision.moves.len(), "nothing moves twice in a tick");
        prop_assert!(decision.stayed + decision.locked <= decision.asked);
        if mode != Mode::OpmBd {
            for node in [0, 1].map(NodeId) {
                let kept = before[&node].min(reserve.bytes);
                prop_assert!(model.free[&node] >= kept, "the reserve of node {} shrank", node);
            }
        }
    }

    #[test]
    fn victims_are_of_the_own_group_or_of_one_above_its_limit(
        units in units(),
        asks in 0usize..60,
        over in proptest::option::of(0u16..3),
        nth in 0usize..6,
    ) {
        let asking = units[asks % units.len()];
        let (mut tiering, reserve) = tiering(Mode::ALL[nth]);
        let mut model = Model::new(units.clone(), [16, 16, 4, 4]);
        let mut rooms = model.rooms(reserve);
        if let Some(over) = over {
            rooms.limit(GroupId(over), -4096);
        }
        let decision = model.tick(&mut tiering, vec![asking], rooms, 1);
        let by_addr: BTreeMap<u64, &Unit> = units.iter().map(|unit| (unit.addr, unit)).collect();
        for one in &decision.moves {
            let group = by_addr[&one.addr].group;
            let may = group == asking.group || over.is_some_and(|over| group == GroupId(over));
            prop_assert!(may, "group {:?} paid for {:?}", group, asking.group);
        }
    }

    #[test]
    fn a_group_never_has_less_than_its_own_for_others(
        units in units(), lacking in proptest::array::uniform3(-9i64..9), nth in 0usize..6
    ) {
        let (mut tiering, reserve) = tiering(Mode::ALL[nth]);
        let mut model = Model::new(units.clone(), [16, 16, 30, 30]);
        let mut rooms = model.rooms(reserve);
        for (group, lacking) in (0..).zip(lacking) {
            rooms.entitle(GroupId(group), lacking * OS_PAGE as i64);
        }
        let asking: Vec<Unit> =
            units.iter().filter(|unit| unit.group != GroupId(2)).copied().collect();
        let fast = |units: &[Unit]| {
            units.iter().filter(|unit| unit.group == GroupId(2) && unit.node.0 < 2).count() as i64
        };
        let decision = model.tick(&mut tiering, asking, rooms, 1);
        model.carry_out(&mut tiering, &decision, 1);
        let given = fast(&units) - fast(&model.units);
        prop_assert!(given <= (-lacking[2]).max(0), "{} given, lacking {:?}", given, lacking);
    }

    #[test]
    fn a_group_never_exceeds_its_limit_by_a_tick(
        units in units(), left in -5i64..10, nth in 0usize..6
    ) {
        let fast = |units: &[Unit]| {
            let of_0 = units.iter().filter(|unit| unit.group == GroupId(0));
            of_0.filter(|unit| unit.node.0 < 2).count() as i64
        };
        let (mut tiering, reserve) = tiering(Mode::ALL[nth]);
        let mut model = Model::new(units.clone(), [30; 4]);
        let mut rooms = model.rooms(reserve);
        rooms.limit(GroupId(0), left * OS_PAGE as i64);
        let decision = model.tick(&mut tiering, units.clone(), rooms, 1);
        model.carry_out(&mut tiering, &decision, 1);
        let more = fast(&model.units) - fast(&units);
        prop_assert!(more <= left.max(0), "{} OS pages more, {} were left", more, left);
    }

    #[test]
    fn no_tick_of_benefit_loses_by_its_own_estimate(
        units in units(), free in proptest::array::uniform4(0u64..40)
    ) {
        let (mut tiering, reserve) = tiering(Mode::Benefit);
        let mut model = Model::new(units.clone(), free);
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, units.clone(), rooms, 1);
        model.carry_out(&mut tiering, &decision, 1);
        let saved = (stall_ns_per_s(&units) - stall_ns_per_s(&model.units)) * estimate().horizon_s;
        let cost = decision.moves.len() as f64 * OS_PAGE as f64 * estimate().move_ns_per_byte;
        let slack = 1e-6 * stall_ns_per_s(&units);
        prop_assert!(saved + slack >= cost, "saved {} ns, cost {} ns", saved, cost);
        let gains: f64 = decision.moves.iter().map(|one| one.gain_ns_per_s).sum();
        prop_assert!((gains * estimate().horizon_s - saved).abs() <= slack.max(1e-3));
        prop_assert!(places().cpu_nodes().count() == 2);
    }

    /// In mode `opm` the victims of a unit come right before it.
    #[test]
    fn opm_replaces_only_what_is_colder(units in units(), free in 0u64..40) {
        let (mut tiering, reserve) = tiering(Mode::Opm);
        let mut model = Model::new(units.clone(), [free / 2, 0, 40, 40]);
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, units.clone(), rooms, 1);
        let by_addr: BTreeMap<u64, &Unit> = units.iter().map(|unit| (unit.addr, unit)).collect();
        let mut victim = None;
        for one in &decision.moves {
            let unit = by_addr[&one.addr];
            if unit.node.0 < 2 && one.to.0 >= 2 {
                victim = victim.max(Some(unit.victim_level()));
            } else if let Some(victim) = victim.take() {
                prop_assert!(victim < unit.level, "level {} left for {}", victim, unit.level);
            }
        }
        prop_assert_eq!(victim, None, "what leaves leaves for a unit");
    }
}
