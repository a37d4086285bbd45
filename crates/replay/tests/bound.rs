//! The bounds: against an exhaustive search on tiny streams, and against runs.

use proptest::prelude::*;
use tiercel_machine::Machine;
use tiercel_policy::{Config, Gate, Trigger};
use tiercel_replay::{
    Accesses, Contender, EnergyItems, Event, Half, Items, Model, MoveCosts, Piece, Setting, Speeds,
    Stream, What, lives, preset, replay,
};
use tiercel_wire::{Flags, Record, Version};

const PAGE: u64 = 4096;

/// On the third one some accesses are quicker in slow memory; of three of them energies are known.
const MACHINES: [&str; 4] = ["cascadelake-optane", "spr-cxl", "xeonmax-hbm", "pcm"];

fn speeds(machine: usize) -> Speeds {
    Speeds::new(&Machine::builtin(MACHINES[machine]).unwrap().unwrap()).unwrap()
}

fn costs(speeds: &Speeds) -> MoveCosts {
    MoveCosts { promote_ns: speeds.promote_ns_per_byte(), demote_ns: speeds.demote_ns_per_byte() }
}

/// What a tiny stream does: object, reads.
type Reads = Vec<(usize, u64)>;

/// Objects of some OS pages each, born at once, and reads of whole objects.
fn stream(objects: &[u64], reads: &Reads, gap_ns: u64) -> Stream {
    let mut events = Vec::new();
    let (mut page, mut pieces) = (0, Vec::new());
    for (nth, pages) in objects.iter().enumerate() {
        let (addr, bytes) = (tiercel_replay::BASE + page * PAGE, pages * PAGE);
        let version = Version { carve: nth as u32 + 1, generation: 0 };
        let (arena, flags) = (None, Flags::default());
        let record =
            Record::Born { addr, bytes, site: nth as u32 + 1, version, arena, flags, time_ns: 0 };
        events.push(Event { at_ns: 0, pid: 1, what: What::Record(record) });
        pieces.push(Piece { addr, bytes });
        page += pages;
    }
    for (nth, (object, reads)) in reads.iter().enumerate() {
        let Piece { addr, bytes } = pieces[*object];
        let accesses = Accesses {
            addr,
            bytes,
            reads: *reads,
            at_once: 1.0,
            apart: true,
            ..Default::default()
        };
        let at_ns = (nth as u64 + 1) * gap_ns;
        events.push(Event { at_ns, pid: 1, what: What::Accesses(accesses) });
    }
    Stream {
        name: "tiny".to_owned(),
        what: String::new(),
        half: Half::Tuned,
        pids: vec![1],
        work_ns: (reads.len() as u64 + 2) * gap_ns,
        events,
        os_pages: page,
        lost: Vec::new(),
    }
}

/// The least stall and cost of moves: every choice of objects of one OS page at every access.
fn exhaustive(objects: usize, reads: &Reads, room: u32, speeds: &Speeds) -> f64 {
    let costs = costs(speeds);
    let value = |reads: u64| {
        speeds.value_ns(&Accesses { reads, at_once: 1.0, apart: true, ..Default::default() })
    };
    let sets: Vec<u32> = (0..1u32 << objects).filter(|set| set.count_ones() <= room).collect();
    let mut present = 0u32;
    let mut best: Vec<f64> = vec![0.0; sets.len()];
    for (object, reads) in reads {
        // What was never touched goes where it should for free.
        let new = best.iter().enumerate().map(|_| f64::INFINITY).collect::<Vec<_>>();
        let mut next = new;
        for (to, set) in sets.iter().enumerate() {
            for (from, before) in sets.iter().enumerate() {
                let up = (set & !before & present).count_ones() as f64;
                let down = (before & !set & present).count_ones() as f64;
                let moved = (up * costs.promote_ns + down * costs.demote_ns) * PAGE as f64;
                let stall = if set >> object & 1 == 1 { 0.0 } else { value(*reads) };
                next[to] = next[to].min(best[from] + moved + stall);
            }
        }
        present |= 1 << object;
        best = next;
    }
    best.into_iter().fold(f64::INFINITY, f64::min)
}

fn any_reads(objects: usize) -> impl Strategy<Value = Reads> {
    // An OS page costs 53 us to exchange: from far less than that to far more.
    prop::collection::vec((0..objects, 1u64..2000), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_bound_is_the_best_of_all_placements_or_below(
        (objects, reads) in (2usize..5).prop_flat_map(|n| (Just(n), any_reads(n))), room in 1u32..3,
        machine in 0..MACHINES.len(),
    ) {
        let speeds = speeds(machine);
        let stream = stream(&vec![1; objects], &reads, 1_000_000);
        let items = Items::new(&stream, &lives(&stream, &speeds));
        let paid = items.paid(u64::from(room) * PAGE, costs(&speeds));
        let best = items.all_fast_ns() + exhaustive(objects, &reads, room, &speeds);
        let slack = 1e-6 * best;
        prop_assert!(paid.bound_ns <= best + slack, "{paid:?} {best}");
        prop_assert!(paid.found_ns >= best - slack, "{paid:?} {best}");
        let worth = (items.all_slow_ns() - best).abs().max(items.all_fast_ns() - best);
        prop_assert!(best - paid.bound_ns <= 0.1 * worth + slack, "loose: {paid:?} {best} {worth}");
    }
}

fn named(name: &str) -> Contender {
    preset(name).unwrap().remove(0).1
}

fn contenders() -> Vec<Contender> {
    let tiercel = |gate, trigger| {
        let policy = Config { tick_ms: 10, gate, trigger, ..Config::default() };
        let (extent_bytes, finest_bytes) = (16 * PAGE, 4 * PAGE);
        let name = String::new();
        Contender::Tiercel(Box::new(Setting { name, policy, extent_bytes, finest_bytes }))
    };
    vec![
        Contender::FirstTouch,
        Contender::Interleave,
        named("clock-dwf"),
        named("clock-dwf-forgets"),
        named("oam"),
        named("joint"),
        Contender::TwoPhase,
        tiercel(Gate::None, "time:ticks=1".parse().unwrap()),
        tiercel(Gate::default(), "time:ticks=1".parse().unwrap()),
        tiercel(Gate::default(), Trigger::Never),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_run_is_faster_than_the_bound(
        objects in prop::collection::vec(1u64..80, 2..6),
        picks in prop::collection::vec((any::<prop::sample::Index>(), 1u64..200_000), 10..80),
        room in 5u64..150, machine in 0..MACHINES.len(), seed: u64,
    ) {
        let speeds = speeds(machine);
        let reads = picks.iter().map(|(pick, reads)| (pick.index(objects.len()), *reads)).collect();
        let stream = stream(&objects, &reads, 3_000_000);
        prop_assert_eq!(stream.check(), Ok(()));
        let lives = lives(&stream, &speeds);
        let items = Items::new(&stream, &lives);
        let paid = items.paid(room * PAGE, costs(&speeds));
        let fixed = items.fixed(room * PAGE).unwrap();
        prop_assert!(fixed >= paid.bound_ns * (1.0 - 1e-9), "{fixed} {paid:?}");
        let model = Model { period: 500, own_bytes: 0, ..Model::default() };
        for contender in contenders() {
            let setup = (&speeds, room * PAGE);
            let run = replay((&stream, &lives), setup, &contender, (&model, seed)).unwrap();
            let time_ns = run.time_ns;
            prop_assert!(time_ns >= paid.bound_ns * (1.0 - 1e-9), "{contender:?} {run:?} {paid:?}");
            if let Some(joules) = run.joules {
                let bound_j = EnergyItems::new(&stream, &speeds).unwrap().bound_j(room * PAGE);
                let own_j = joules.accesses_j + joules.moves_j;
                prop_assert!(own_j >= bound_j * (1.0 - 1e-9), "{contender:?} {own_j} {bound_j}");
            }
            let misses = stream.misses() as f64;
            prop_assert!((run.spent.misses - misses).abs() < 1e-6 * misses);
        }
    }
}

#[test]
fn a_static_choice_is_exact_where_lives_overlap() {
    let speeds = speeds(0);
    // Room for one OS page; the most valuable two together need two.
    let reads = vec![(0, 100), (1, 150), (2, 120), (0, 100)];
    let stream = stream(&[1, 1, 1], &reads, 1000);
    let items = Items::new(&stream, &lives(&stream, &speeds));
    let of = |reads: u64| {
        speeds.value_ns(&Accesses { reads, at_once: 1.0, apart: true, ..Default::default() })
    };
    let saved = items.all_slow_ns() - items.fixed(PAGE).unwrap();
    assert!((saved - of(200)).abs() < 1.0, "{saved}");
    let saved = items.all_slow_ns() - items.fixed(2 * PAGE).unwrap();
    assert!((saved - of(350)).abs() < 1.0, "{saved}");
    let saved = items.all_slow_ns() - items.fixed(9 * PAGE).unwrap();
    assert!((saved - of(470)).abs() < 1.0, "{saved}");
}

#[test]
fn the_least_energy_is_that_of_fast_memory_where_it_has_room() {
    let speeds = speeds(3);
    let stream = stream(&[2, 1], &vec![(0, 1000), (1, 500), (0, 1000)], 1000);
    let items = EnergyItems::new(&stream, &speeds).unwrap();
    // 1.17 and 2.47 pJ for each bit that is read, in table 2 of OAM.
    let joules = |reads: f64, pj_per_bit: f64| reads * 64.0 * 8.0 * pj_per_bit * 1e-12;
    let near = |is: f64, should: f64| assert!((is / should - 1.0).abs() < 1e-3, "{is} {should}");
    near(items.bound_j(3 * PAGE), joules(2500.0, 1.17));
    near(items.bound_j(2 * PAGE), joules(2000.0, 1.17) + joules(500.0, 2.47));
    near(items.bound_j(0), joules(2500.0, 2.47));
    let unknown = Speeds::new(&Machine::builtin("optane-oam").unwrap().unwrap()).unwrap();
    assert!(EnergyItems::new(&stream, &unknown).is_none());
}
