//! Whole decisions, from objects and accesses in words to moves in words.
//! In: a policy as on the command line, a budget, objects. Out: what would be moved and what not,
//! and why. Knows nothing of how it is decided.

use expect_test::expect;
use tiercel_ledger::Range;
use tiercel_ledger::movement::{Outcome, Reason};
use tiercel_machine::{Machine, NodeId};
use tiercel_policy::{Budgets, Config, Gate, Group, Limit, Members, Policy, Trigger, divide};
use tiercel_wire::{Flags, Record, Version};

mod world;
use world::{MIB, PID, World, check, decide, machine, policy};

#[test]
fn mat_fills_nine_tenths_in_order_of_accesses_per_byte() {
    // Accesses per MiB: a 10, b 2.5, c 50, d 0. 90% of 10 MiB hold c and a; b does not fit, d does.
    check(
        "apb",
        "none",
        10,
        "a:4@1:40 b:4@0:10 c:2@1:100 d:2@0:0",
        expect![[r#"
            demote b 0 -> 1
            promote c 1 -> 0
            promote a 1 -> 0"#]],
    );
}

#[test]
fn fifo_prefers_the_young_and_first_come_the_old() {
    let objects = "a:4@0:9 b:4@0:0 c:4@1:0";
    let young = expect![[r#"
        demote a 0 -> 1
        promote c 1 -> 0"#]];
    check("fifo", "none", 10, objects, young);
    check("first-come", "none", 10, objects, expect![""]);
}

#[test]
fn lru_prefers_what_was_accessed() {
    check(
        "lru",
        "none",
        5,
        "a:4@0:0 b:4@1:1",
        expect![[r#"
            demote a 0 -> 1
            promote b 1 -> 0"#]],
    );
}

#[test]
fn an_expression_orders_as_it_says() {
    check(
        "expression:0 - size",
        "none",
        5,
        "a:4@0:100 b:1@1:0",
        expect![[r#"
        demote a 0 -> 1
        promote b 1 -> 0"#]],
    );
    check(
        "expression:log(0 - bytes)",
        "none",
        5,
        "a:4@0:100 b:1@1:0",
        expect![[r#"
            problem: expression `log(0 - bytes)` yields no number for 2 extents; they come
            last"#]],
    );
}

#[test]
fn three_tiers_fill_in_order() {
    let world = World::new("a:4@2:90 b:4@0:0 c:4@0:50 d:4@1:70 e:4@2:1");
    let machine = machine(&[(1000, 100.0), (9, 200.0), (1000, 300.0)]);
    let decision = decide(&world, &mut policy("apb", "none"), &machine, 9);
    expect![[r#"
        demote b 0 -> 2
        demote c 0 -> 1
        promote a 2 -> 0
        promote d 1 -> 0
        promote e 2 -> 1"#]]
    .assert_eq(&world.shown(&decision));
}

#[test]
fn what_it_cannot_do_it_says() {
    let world = World::new("a:4@?:0");
    let one = machine(&[(1000, 100.0)]);
    let two = machine(&[(1000, 0.0), (1000, 0.0)]);
    let shown = |machine: &Machine, fast_mib| {
        let mut policy = policy("apb", "shadow:");
        world.shown(&decide(&world, &mut policy, machine, fast_mib))
    };
    expect![[r#"
        problem: this machine has one memory tier, so there is nothing to place; name a
        modelled machine to see what would move"#]]
    .assert_eq(&shown(&one, 10));
    expect![[r#"
        problem: group all has no room in the fast tier: untracked memory takes 0 B of
        its budget of 0 B; raise the budget
        problem: the memory latencies of this machine are unknown; benefits assume 100
        ns per tier; measure the machine, or set gate = "none"
        problem: no sample has hit an extent yet, so all extents rank equal; see
        `tiercel doctor` for what the sampler can observe"#]]
    .assert_eq(&shown(&two, 0));
}

#[test]
fn a_machine_without_memory_is_no_reason_to_panic() {
    let world = World::new("a:4@0:9");
    let decision = decide(&world, &mut policy("apb", "none"), &machine(&[]), 10);
    assert_eq!((decision.moves.len(), decision.problems.len()), (0, 1));
}

#[test]
fn births_get_what_is_free() {
    let world = World::new("a:4@0:0 b:4@1:0");
    let machine = machine(&[(1000, 100.0), (100, 300.0)]);
    let decision = decide(&world, &mut policy("apb", "none"), &machine, 10);
    let births = &decision.births[0];
    assert_eq!(births.tiers[0], (vec![NodeId(0)], 2 * MIB), "10 - a - b, which is on its way");
    assert_eq!(births.small_tier, 0);
}

#[test]
fn a_share_of_peak_follows_the_peak() {
    let world = World::new("a:4@1:9 b:4@1:8 c:2@1:1");
    let machine = machine(&[(1000, 100.0), (1000, 300.0)]);
    let budgets = Budgets::fast("50%".parse().expect("a limit"));
    let mut policy = policy("apb", "none");
    let decision = policy.tick(&world.ledger, &machine, &budgets, &world.last);
    // Half of 10 MiB, of which 90%: 4.5 MiB.
    assert_eq!(decision.summary.expect("fired").promoted_bytes, 4 * MIB);
}

#[test]
fn what_is_kept_for_births_follows_them() {
    // Nine objects of 2 MiB, then one of 8 is born; 28 MiB to be had, of which half may be kept.
    let objects: Vec<String> = (0..9).map(|nth| format!("o{nth}:2@1:{}", 50 - nth)).collect();
    let machine = machine(&[(1000, 100.0), (1000, 300.0)]);
    for (enforce, quiet_ticks, promoted) in [
        ("fill:follow_births=false,percent=50", 0, 7),
        ("fill:follow_births=false,percent=50", 20, 7),
        ("fill:follow_births=true,percent=50", 0, 9),
        ("fill:follow_births=true,percent=50", 20, 10),
    ] {
        let mut world = World::new(&objects.join(" "));
        world.born("last", 8 * MIB);
        world.tick();
        let config = Config {
            trigger: format!("time:ticks={},first={}", quiet_ticks + 1, quiet_ticks + 1)
                .parse()
                .expect("a routine"),
            enforce: enforce.parse().expect("a routine"),
            gate: Gate::None,
            ..Config::default()
        };
        let mut policy = Policy::new(config).expect("good");
        let mut decision = decide(&world, &mut policy, &machine, 28);
        for _ in 0..quiet_ticks {
            world.tick();
            decision = decide(&world, &mut policy, &machine, 28);
        }
        assert_eq!(decision.moves.len(), promoted, "{enforce} after {quiet_ticks}");
    }
}

#[test]
fn never_does_nothing() {
    let world = World::new("a:4@1:100");
    let machine = machine(&[(1000, 100.0), (1000, 300.0)]);
    let config = Config { trigger: Trigger::Never, gate: Gate::None, ..Config::default() };
    let mut policy = Policy::new(config).expect("good");
    assert_eq!(decide(&world, &mut policy, &machine, 100).moves, []);
}

#[test]
fn moves_cost_what_they_have_cost() {
    let (fast, slow) = (NodeId(0), NodeId(1));
    let mut policy = policy("apb", "shadow:");
    assert_eq!((policy.move_ns_per_byte(fast), policy.move_ns_per_byte(slow)), (0.7, 0.7));
    let outcome = |to, moved_bytes: u64, took_ns: u64| {
        let asked = tiercel_ledger::movement::Move {
            pid: PID,
            addr: 0,
            bytes: 64 * MIB,
            from: None,
            to,
            reason: Reason::Promote,
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        };
        Outcome { moved_bytes, resident_bytes: moved_bytes, took_ns, ..Outcome::of(asked) }
    };
    let check = |policy: &tiercel_policy::Policy, node, want: f64| {
        let ns = policy.move_ns_per_byte(node);
        assert!((ns - want).abs() < 1e-6, "{ns}, not {want}");
    };
    // What is assumed weighs a MiB, so 4 MiB at 10.7 ns a byte weigh four fifths.
    policy.outcome(&outcome(fast, 4 * MIB, 4 * MIB * 107 / 10));
    check(&policy, fast, 8.7);
    check(&policy, slow, 8.7);
    // The way down is another: it begins with what the way up costs.
    policy.outcome(&outcome(slow, MIB, MIB * 287 / 10));
    check(&policy, fast, 8.7);
    check(&policy, slow, 18.7);
    // Moves that moved nothing, and modelled movers, teach nothing.
    policy.outcome(&outcome(fast, 0, 1_000_000));
    policy.outcome(&outcome(fast, 64 * MIB, 0));
    check(&policy, fast, 8.7);
    // After a long time the latest bytes count.
    for _ in 0..1000 {
        policy.outcome(&outcome(fast, 64 * MIB, 64 * MIB));
    }
    check(&policy, fast, 1.0);
}

#[test]
fn groups_have_their_own_budgets() {
    let mut world = World::new("a:4@1:9 b:2@1:8");
    // A second process with the same objects, much hotter.
    world.ledger.process_born(2).expect("new");
    let (addr, bytes) = (world.addr("a"), 4 * MIB);
    let version = Version { carve: 1, generation: 0 };
    let (site, arena, flags, time_ns) = (0, None, Flags(0), 0);
    world.ledger.apply(2, &Record::Born { addr, bytes, site, version, arena, flags, time_ns });
    world.tick();
    world.ledger.set_residency(Range { pid: 2, addr, bytes }, &[(NodeId(1), bytes)], 0);
    let group = |name: &str, pid, mib| Group {
        name: name.to_owned(),
        members: Members::Pids(vec![pid]),
        home: None,
        limits: vec![Limit::Bytes(mib * MIB)],
        outside_bytes: vec![MIB],
    };
    let groups = vec![group("first", PID, 4), group("second", 2, 9)];
    let budgets = Budgets { groups, ..Budgets::fast(Limit::Capacity) };
    let machine = machine(&[(1000, 100.0), (1000, 300.0)]);
    let decision = policy("apb", "none").tick(&world.ledger, &machine, &budgets, &world.last);
    // 90% of 4 - 1 MiB hold b; 90% of 9 - 1 hold all of the second's.
    let moved: Vec<_> = decision.moves.iter().map(|m| (m.pid, m.bytes / MIB)).collect();
    assert_eq!(moved, [(PID, 2), (2, 4)]);
    let left: Vec<_> =
        decision.births.iter().map(|plan| (plan.pid, plan.tiers[0].1 / MIB)).collect();
    assert_eq!(left, [(PID, 1), (2, 4)]);
}

#[test]
fn room_goes_to_those_that_allocate() {
    assert_eq!(divide(1600, &[0, 0]), [800, 800], "none of them did");
    assert_eq!(divide(1600, &[0, 7]), [100, 1500], "a shell that waits");
    assert_eq!(divide(1600, &[3, 1]), [100 + 1050, 100 + 350]);
    assert_eq!(divide(1600, &[]), []);
    assert!(divide(u64::MAX, &[u64::MAX, 1]).iter().all(|share| *share > 0));
}

#[test]
fn what_a_plan_places_stays_and_takes_its_capacity() {
    let mut world = World::new("b:4@1:100 c:4@1:1000");
    let (addr, bytes, site, time_ns) = (0x8000_0000, 4 * MIB, 5, 0);
    let (version, arena, flags) = (Version { carve: 9, generation: 0 }, None, Flags(0));
    world.ledger.apply(PID, &Record::Born { addr, bytes, site, version, arena, flags, time_ns });
    world.tick();
    world.ledger.set_residency(Range { pid: PID, addr, bytes }, &[(NodeId(0), bytes)], 0);
    let machine = machine(&[(1000, 100.0), (1000, 300.0)]);
    let mut budgets = Budgets::fast(Limit::Bytes(9 * MIB));
    let moved = |budgets: &Budgets| -> Vec<(u64, NodeId)> {
        let decision = policy("apb", "none").tick(&world.ledger, &machine, budgets, &world.last);
        decision.moves.iter().map(|m| (m.addr, m.to)).collect()
    };
    // 90% of 9 MiB hold the two that are hot, or one of them beside what is cold and stays.
    let (b, c) = (world.addr("b"), world.addr("c"));
    assert_eq!(moved(&budgets), [(addr, NodeId(1)), (c, NodeId(0)), (b, NodeId(0))]);
    budgets.placed.insert((PID, site));
    assert_eq!(moved(&budgets), [(c, NodeId(0))]);
}

#[test]
fn a_home_ranks_near_memory_before_far() {
    let mut machine = machine(&[(1000, 100.0), (1000, 100.0), (1000, 300.0)]);
    machine.nodes[1].tier = Some(0);
    machine.nodes[2].tier = Some(1);
    machine.distances = vec![vec![10, 20, 30], vec![20, 10, 30], vec![30, 30, 10]];
    let world = World::new("a:4@0:90 b:4@0:50 c:4@1:9");
    let mut budgets = Budgets::fast(Limit::Bytes(5 * MIB));
    budgets.groups[0].home = Some(NodeId(1));
    let decision = policy("apb", "none").tick(&world.ledger, &machine, &budgets, &world.last);
    // Seen from node 1 its own memory comes first, then node 0's.
    expect![[r#"
        demote c 1 -> 0
        promote a 0 -> 1"#]]
    .assert_eq(&world.shown(&decision));
}
