//! Random small programs: capacities at every instant, the best plan by trying all, bounds.

mod made;

use made::{all_placements, keeps_capacities, least, memory, object, with_energy, worst_overflow};
use proptest::prelude::*;
use tiercel_planner::{
    Cost, Effort, Levels, Memory, MoveSpeed, Objective, Options, Placements, PlanError, Promise,
    Strategy, Use, Workload, evaluate, plan,
};

const STRATEGIES: [Strategy; 8] = [
    Strategy::FirstCome,
    Strategy::Greedy,
    Strategy::Initial,
    Strategy::Lifetimes,
    Strategy::Intervals,
    Strategy::Phases { ahead: 1 },
    Strategy::Phases { ahead: 3 },
    Strategy::Joint,
];

/// Objects in phases of 100 ns, born and dead at multiples of 10 ns, so that many do so at once.
fn workloads(objects: usize, phases: u64) -> impl Strategy_<Value = Workload> {
    let one = (1u64..20, 0..phases * 10, 1u64..=phases * 10, prop::collection::vec(uses(), 8));
    (1..=phases, prop::collection::vec(one, 1..=objects)).prop_map(move |(phases, objects)| {
        let end = phases * 10;
        let objects = objects.into_iter().map(|(bytes, birth, length, uses)| {
            let birth = birth % end;
            let lives = (birth * 10, (birth + length).min(end) * 10);
            let slot = |at: u64| usize::try_from(at).unwrap();
            let seen = slot(lives.0 / 100)..slot(lives.1.div_ceil(100));
            let at = |phase: usize| Use { phase: u32::try_from(phase).unwrap(), ..uses[phase] };
            object(bytes, lives, seen.map(at).filter(|one| one.reads > 20.0).collect())
        });
        made::workload(phases, objects.collect())
    })
}

use proptest::strategy::Strategy as Strategy_;

fn uses() -> impl Strategy_<Value = Use> {
    let counts = (0.0..100.0f64, 0.0..40.0f64, 0.0..=1.0f64);
    (counts, 0.0..8.0f64, 0.0..64.0f64, 1u32..16).prop_map(
        |((reads, writes, hit_ratio), latency_weight, drawn_bytes, threads)| Use {
            phase: 0,
            reads,
            writes,
            hit_ratio,
            latency_weight,
            drawn_bytes,
            isolated: None,
            threads,
        },
    )
}

/// Two or three memories, the last with room for all.
fn memories() -> impl Strategy_<Value = Vec<Memory>> {
    (2usize..=3, 0u64..60, 0u64..60, 0.05..2.0f64).prop_map(|(count, first, second, gb_s)| {
        let first = with_energy(memory("a", first, 80.0, 4.0 * gb_s), 2.0, 2.0, 3e-4);
        let second = with_energy(memory("b", second, 120.0, 2.0 * gb_s), 1.0, 1.5, 1e-4);
        let last = with_energy(memory("c", 10_000, 250.0, gb_s), 1.0, 4.0, 0.0);
        let last = Memory { write_latency_ns: 400.0, ..last };
        if count == 2 { vec![first, last] } else { vec![first, second, last] }
    })
}

fn made_with(
    workload: &Workload,
    memories: &[Memory],
    strategy: Strategy,
    effort: Effort,
) -> Result<Placements, PlanError> {
    plan(workload, memories, &Options { strategy, effort, ..Options::default() })
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1e-6)
}

fn check_whole(workload: &Workload, memories: &[Memory], plan: &Placements) {
    assert!(keeps_capacities(workload, memories, &plan.placements), "{plan:?}");
    assert_eq!(worst_overflow(workload, memories, plan), plan.overflow_bytes);
    let promise = plan.promise;
    let (cost, _) = evaluate(workload, memories, &MoveSpeed::default(), &plan.placements);
    assert_eq!(cost, promise.cost);
    if let Some(bound) = promise.bound {
        assert!(bound <= promise.value * (1.0 + 1e-9) + 1e-9, "{promise:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_capacity_is_ever_exceeded(
        workload in workloads(24, 6),
        memories in memories(),
        one_by_one: bool,
    ) {
        let levels = if one_by_one { Levels::OneByOne } else { Levels::Joint };
        for strategy in STRATEGIES {
            let effort = Effort { search_steps: 2000, ..Effort::default() };
            let options = Options { strategy, levels, effort, ..Options::default() };
            let plan = plan(&workload, &memories, &options).expect("the last memory holds all");
            check_whole(&workload, &memories, &plan);
            prop_assert_eq!(plan.overflow_bytes, 0);
            prop_assert_eq!(&plan, &once_more(&workload, &memories, &options));
            let same = plan.with(&workload, &memories, &options.copy, plan.placements.clone());
            let promise = Promise { proven: same.promise.proven, ..plan.promise };
            prop_assert_eq!(same, Placements { promise, ..plan });
        }
    }

    #[test]
    fn tight_memories_are_kept_or_refused(
        workload in workloads(12, 4),
        memories in memories(),
        last in 20u64..100,
    ) {
        let mut memories = memories;
        memories.last_mut().expect("two at least").capacity_bytes = last;
        for strategy in STRATEGIES {
            match made_with(&workload, &memories, strategy, Effort::default()) {
                Ok(plan) => check_whole(&workload, &memories, &plan),
                Err(PlanError::NoRoom { .. }) => {}
                    Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_best_of_all_is_found(workload in workloads(4, 2), memories in memories()) {
        let copy = MoveSpeed::default();
        for (strategy, by_phase) in [(Strategy::Intervals, false), (Strategy::Joint, true)] {
            let best = least(&workload, &memories, &copy, by_phase, |cost| cost.time_ns);
            let best = best.expect("the last memory holds all");
            let found = made_with(&workload, &memories, strategy, Effort::default()).expect("room");
            prop_assert!(found.promise.proven);
            prop_assert!(close(found.promise.cost.time_ns, best), "{best} {found:?}");
            // Without a search: within the gap it reports.
            let quick = Effort { search_steps: 0, ..Effort::default() };
            let quick = made_with(&workload, &memories, strategy, quick).expect("room").promise;
            let bound = quick.bound.expect("a bound");
            prop_assert!(bound <= best * (1.0 + 1e-9) && best <= quick.value * (1.0 + 1e-9));
            let gain = quick.in_last.time_ns - bound;
            let missing = quick.gap.expect("a gap") * gain;
            prop_assert!(quick.value - best <= missing + 1e-6 * quick.value, "{quick:?} {best}");
            for other in STRATEGIES {
                let other = made_with(&workload, &memories, other, Effort::default());
                let other = other.expect("room").promise.cost.time_ns;
                prop_assert!(!by_phase || best <= other * (1.0 + 1e-9), "nothing is better");
            }
        }
    }

    #[test]
    fn products_and_slowdowns_keep_their_bounds(
        workload in workloads(3, 2),
        memories in memories(),
        slowdown in 0.0..0.5f64,
    ) {
        let product = |cost: Cost| cost.time_ns * cost.energy_pj;
        let options = Options { objective: Objective::EnergyDelay, ..Options::default() };
        let found = plan(&workload, &memories, &options).expect("room");
        check_whole(&workload, &memories, &found);
        let best = least(&workload, &memories, &options.copy, true, product).expect("room");
        let bound = found.promise.bound.expect("a bound");
        prop_assert!(bound <= best * (1.0 + 1e-6), "{bound} {best}");
        prop_assert!(best <= found.promise.value * (1.0 + 1e-9));
        let options = Options {
            objective: Objective::Energy,
            slowdown_max: Some(slowdown),
            ..Options::default()
        };
        let found = plan(&workload, &memories, &options).expect("room");
        let fastest = least(&workload, &memories, &options.copy, true, |cost| cost.time_ns);
        let limit_ns = fastest.expect("room") * (1.0 + slowdown) * (1.0 + 1e-9);
        prop_assert!(found.promise.cost.time_ns <= limit_ns);
        let best = all_placements(&workload, memories.len(), true)
            .iter()
            .filter(|all| keeps_capacities(&workload, &memories, all))
            .map(|all| evaluate(&workload, &memories, &options.copy, all).0)
            .filter(|cost| cost.time_ns <= limit_ns)
            .map(|cost| cost.energy_pj)
            .fold(f64::INFINITY, f64::min);
        let bound = found.promise.bound.expect("a bound");
        prop_assert!(bound <= best * (1.0 + 1e-6), "{bound} {best}");
    }
}

fn once_more(workload: &Workload, memories: &[Memory], options: &Options) -> Placements {
    plan(workload, memories, options).expect("as before")
}
