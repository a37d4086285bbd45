//! OS-page tiering, decision by decision: the table of modes, row by row.
//! In: one unit, one victim, which nodes are full. Out: what moves. Knows nothing of how it is
//! decided.

#[path = "pages/model.rs"]
mod model;

use model::{Model, OS_PAGE, estimate, places, tiering, unit};
use tiercel_ledger::regions::{Accessor, Early, GroupId, Unit};
use tiercel_machine::{Machine, NodeId};
use tiercel_policy::pages::{
    LOCK_WINDOWS, Mode, PagesConfig, Places, PlacesError, Reserve, Situation, Stay, Tiering,
};

const FROM_0: Accessor = Accessor::Node(NodeId(0));
const FROM_1: Accessor = Accessor::Node(NodeId(1));

/// Room that no row uses up.
const MUCH: u64 = 1000;

/// The table of modes (AutoTiering 4, figures 4 to 6). Unit `u` of level 5 is accessed from socket
/// 0 and lies on a node: 0 is DRAM of socket 0, 1 that of socket 1, 2 Optane of socket 0, 3 that of
/// socket 1. Node 0 has victim `v` of level 1, last accessed from socket 0.
///
/// Columns: mode; where `u` is; the full nodes, each `-` (has room), its number (full) or `*` (does
/// not matter); what moves, in order. `x` are exchanges: promoted first, by the reserve.
const MODES: &str = "
*      0 ****  stays
*      * -***  u>0

cpm    1 0***  stays
cpm    2 0-**  u>1
cpm    2 01**  stays
cpm    3 0-**  u>1
cpm    3 01-*  u>2
cpm    3 012*  stays

cpmx   1 0***  stays
cpmx   2 0-**  u>1
cpmx   2 01**  stays
cpmx   3 0-**  u>1
cpmx   3 01-*  u>2
cpmx   3 012*  stays

opm    * 0*-*  v>2 u>0
opm    * 0*2-  v>3 u>0
opm    1 0*23  stays
opm    2 0-23  u>1
opm    2 0123  stays
opm    3 0-23  u>1
opm    3 0123  stays

opmx   1 0*-*  v>2 u>0
opmx   1 0*2-  v>3 u>0
opmx   1 0*23  stays
opmx   2 0***  u>0 v>2
opmx   3 0*-*  v>2 u>0
opmx   3 0*2-  v>3 u>0
opmx   3 0-23  u>1
opmx   3 0123  stays

opm-bd * 0***  u>0
";

/// The row of [`MODES`] for a case; exactly one.
fn row(mode: &str, node: u16, full: [bool; 4]) -> &'static str {
    let matches = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [of, at, pattern, ..] = words[..] else { return false };
        let is_full = |(nth, c): (usize, char)| c == '*' || (c != '-') == full[nth];
        (of == "*" || of == mode)
            && (at == "*" && node != 0 || at == node.to_string())
            && pattern.chars().enumerate().all(is_full)
    };
    let rows: Vec<&str> = MODES.lines().filter(matches).collect();
    assert_eq!(rows.len(), 1, "{mode} {node} {full:?}: {rows:?}");
    rows[0].rsplit("  ").next().expect("a result")
}

/// What a tick moves, in words.
fn decide(mode: Mode, node: u16, full: [bool; 4]) -> String {
    let (mut tiering, reserve) = tiering(mode);
    let (u, v) = (unit(0, node, 5, FROM_0), unit(1, 0, 1, FROM_0));
    let pages = reserve.bytes / OS_PAGE;
    // A full node of the best tier still has the reserve.
    let free = |n: usize| match full[n] {
        true => pages * u64::from(n < 2),
        false => MUCH,
    };
    let mut model = Model::new(vec![u, v], [free(0), free(1), free(2), free(3)]);
    let rooms = model.rooms(reserve);
    let decision = model.tick(&mut tiering, vec![u], rooms, 9);
    let name = |addr| if addr == u.addr { "u" } else { "v" };
    let words: Vec<String> =
        decision.moves.iter().map(|one| format!("{}>{}", name(one.addr), one.to)).collect();
    decision.moves.iter().for_each(|one| model.execute(one));
    if words.is_empty() { "stays".to_owned() } else { words.join(" ") }
}

#[test]
fn every_row_of_the_table_of_modes() {
    let mut cases = 0;
    for (mode, name) in [
        (Mode::Cpm, "cpm"),
        (Mode::Cpmx, "cpmx"),
        (Mode::Opm, "opm"),
        (Mode::Opmx, "opmx"),
        (Mode::OpmBd, "opm-bd"),
    ] {
        for node in 0..4 {
            for bits in 0..16 {
                let full = [0, 1, 2, 3].map(|n| bits >> n & 1 == 1);
                let expected = row(name, node, full);
                assert_eq!(decide(mode, node, full), expected, "{name} {node} {full:?}");
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 5 * 4 * 16);
}

/// Ticks with one unit after another in demand; returns the moves as (process address, node).
fn moves(mode: Mode, units: &[Unit], free: [u64; 4], demands: &[&[usize]]) -> Vec<(usize, u16)> {
    let (mut tiering, reserve) = tiering(mode);
    let mut model = Model::new(units.to_vec(), free);
    let mut all = Vec::new();
    for (window, demand) in demands.iter().enumerate() {
        let demand = demand.iter().map(|nth| model.units[*nth]).collect();
        let rooms = model.rooms(reserve);
        for one in model.tick(&mut tiering, demand, rooms, window as u64).moves {
            model.execute(&one);
            let nth = units.iter().position(|unit| unit.addr == one.addr).expect("a unit");
            all.push((nth, one.to.0));
        }
    }
    all
}

#[test]
fn cpmx_exchanges_with_what_failed_the_other_way() {
    let there = unit(0, 1, 5, FROM_0);
    let back = unit(1, 0, 3, FROM_1);
    let free = [16, 16, 0, 0];
    assert_eq!(moves(Mode::Cpmx, &[there, back], free, &[&[0]]), [], "it waits");
    let expected = [(1, 1), (0, 0)];
    assert_eq!(moves(Mode::Cpmx, &[there, back], free, &[&[0], &[1]]), expected, "a tick later");
    let expected = [(1, 1), (0, 0)];
    assert_eq!(moves(Mode::Cpmx, &[there, back], free, &[&[0, 1]]), expected, "in one tick");
    let huge = Unit { addr: 0x20_0000, bytes: 2 << 20, ..back };
    assert_eq!(moves(Mode::Cpmx, &[there, huge], free, &[&[0, 1]]), [], "of another size");
    assert_eq!(moves(Mode::Cpmx, &[there, back], [0, 0, 9, 9], &[&[0, 1]]), [], "no reserve");
    assert_eq!(moves(Mode::Cpm, &[there, back], [0; 4], &[&[0, 1]]), [], "cpm exchanges nothing");
}

#[test]
fn a_partner_that_moved_meanwhile_is_none() {
    let (mut tiering, reserve) = tiering(Mode::Cpmx);
    let there = unit(0, 1, 5, FROM_0);
    let back = unit(1, 0, 3, FROM_1);
    let mut model = Model::new(vec![there, back], [16, 16, 0, 0]);
    let rooms = model.rooms(reserve);
    assert!(model.tick(&mut tiering, vec![there], rooms.clone(), 1).moves.is_empty());
    model.units[0].node = NodeId(3);
    assert!(model.tick(&mut tiering, vec![back], rooms, 2).moves.is_empty());
}

#[test]
fn victims_are_the_lowest_and_files_count_one_less() {
    let u = unit(0, 2, 5, FROM_0);
    let units = |levels: [(u8, bool); 3]| {
        let mut all = vec![u];
        all.extend(levels.iter().zip(1..).map(|((level, of_file), nth)| Unit {
            of_file: *of_file,
            ..unit(nth, 0, *level, FROM_0)
        }));
        all
    };
    let victim = |levels| moves(Mode::Opm, &units(levels), [0, 0, 9, 9], &[&[0]])[0];
    assert_eq!(victim([(3, false), (2, false), (4, false)]), (2, 2));
    assert_eq!(victim([(3, true), (3, false), (4, false)]), (1, 2));
    assert_eq!(victim([(4, true), (2, false), (4, false)]), (2, 2));
    let all_hot = units([(5, false), (6, false), (7, false)]);
    assert_eq!(moves(Mode::Opm, &all_hot, [0, 0, 9, 9], &[&[0]]), [], "none is colder");
    assert_eq!(moves(Mode::Opm, &all_hot, [0, 9, 9, 9], &[&[0]]), [(0, 1)], "then as cpm");
}

#[test]
fn a_victim_goes_near_its_last_accessor() {
    let u = unit(0, 2, 5, FROM_0);
    let goes = |accessor| {
        let moves = moves(Mode::Opm, &[u, unit(1, 0, 0, accessor)], [0, 0, 9, 9], &[&[0]]);
        moves[0]
    };
    assert_eq!(goes(FROM_0), (1, 2));
    assert_eq!(goes(FROM_1), (1, 3));
    assert_eq!(goes(Accessor::Unknown), (1, 2), "beside its node");
    let both: Vec<Unit> = (0..4)
        .map(|nth| unit(nth, 2, 5, FROM_0))
        .chain((4..8).map(|nth| unit(nth, 0, 0, Accessor::Several)))
        .collect();
    let moves = moves(Mode::Opm, &both, [0, 0, 9, 9], &[&[0, 1, 2, 3]]);
    let to: Vec<u16> = moves.iter().filter(|(nth, _)| *nth >= 4).map(|(_, to)| *to).collect();
    assert_eq!(to, [3, 2, 3, 2], "slow nodes in turns");
}

#[test]
fn what_both_sockets_touch_goes_to_any_dram_with_room_and_stays_there() {
    let shared = |node| unit(0, node, 8, Accessor::Several);
    for mode in [Mode::Cpm, Mode::Cpmx, Mode::Opm, Mode::Opmx, Mode::OpmBd] {
        let one = |node, free| moves(mode, &[shared(node), unit(1, 0, 0, FROM_0)], free, &[&[0]]);
        assert_eq!(one(0, [MUCH; 4]), [], "{mode:?}");
        assert_eq!(one(1, [MUCH; 4]), [], "{mode:?}");
        assert_eq!(one(3, [20, MUCH, 9, 9]), [(0, 1)], "{mode:?}");
        // No DRAM has room: as at each of its faults in the paper, what is colder leaves for it.
        let expected = match mode {
            Mode::Opm | Mode::Opmx => vec![(1, 3), (0, 0)],
            Mode::OpmBd => vec![(1, 3)],
            _ => vec![],
        };
        assert_eq!(one(2, [0, 0, 0, MUCH]), expected, "{mode:?}");
    }
}

#[test]
fn what_both_sockets_touch_replaces_something_colder_on_either_dram() {
    let shared = unit(0, 2, 5, Accessor::Several);
    let (warm, cold) = (unit(1, 0, 5, FROM_0), unit(2, 1, 1, FROM_1));
    for mode in [Mode::Opm, Mode::Opmx] {
        let moved = moves(mode, &[shared, warm, cold], [0, 0, 9, 9], &[&[0]]);
        assert_eq!(moved, [(2, 3), (0, 1)], "{mode:?}: nothing on node 0 is colder");
    }
    let moved = moves(Mode::OpmBd, &[shared, warm, cold], [16, 15, 9, 9], &[&[0]]);
    assert_eq!(moved, [(0, 1)], "out of the reserve");
}

#[test]
fn background_demotion_refills_a_quarter_and_batches() {
    let hot = (0..20).map(|nth| unit(nth, 2, 8, FROM_0));
    let cold = (20..60).map(|nth| unit(nth, 0, 1, FROM_0));
    let units: Vec<Unit> = hot.chain(cold).collect();
    let demand: Vec<usize> = (0..20).collect();
    let moves = moves(Mode::OpmBd, &units, [16, 0, 99, 99], &[&demand]);
    let to: Vec<u16> = moves.iter().map(|(_, to)| *to).collect();
    // From 16 to 3 OS pages, which is below the threshold of 4; then 13 demotions; then the rest.
    assert_eq!(to[..13], [0; 13]);
    assert_eq!(to[13..26], [2; 13]);
    assert_eq!(to[26..], [0; 7]);
}

#[test]
fn a_promotion_by_reserve_needs_a_lower_level_to_replace() {
    let units = [unit(0, 2, 3, FROM_0), unit(1, 0, 3, FROM_0)];
    assert_eq!(moves(Mode::OpmBd, &units, [16, 0, 9, 9], &[&[0]]), []);
    assert_eq!(moves(Mode::OpmBd, &units, [16, 17, 9, 9], &[&[0]]), [(0, 1)], "then as cpm");
}

#[test]
fn exchanges_go_through_the_reserve_as_often_as_needed() {
    let hot = (0..20).map(|nth| unit(nth, 2, 8, FROM_0));
    let cold = (20..40).map(|nth| unit(nth, 0, 1, FROM_0));
    let units: Vec<Unit> = hot.chain(cold).collect();
    let demand: Vec<usize> = (0..20).collect();
    for mode in [Mode::Opmx, Mode::Benefit] {
        let moves = moves(mode, &units, [8, 0, 0, 0], &[&demand]);
        let to: Vec<u16> = moves.iter().map(|(_, to)| *to).collect();
        let expected = [vec![0; 8], vec![2; 8], vec![0; 8], vec![2; 8], vec![0; 4], vec![2; 4]];
        assert_eq!(to, expected.concat(), "{mode:?}");
    }
}

#[test]
fn a_group_pays_for_itself_or_the_one_above_its_limit() {
    let u = unit(0, 2, 5, FROM_0);
    let own = unit(1, 0, 1, FROM_0);
    let other = Unit { group: GroupId(1), ..unit(2, 0, 0, FROM_0) };
    let victim = |units: &[Unit], limits: &[(u16, i64)]| {
        let (mut tiering, reserve) = tiering(Mode::Opm);
        let mut model = Model::new(units.to_vec(), [0, 0, 9, 9]);
        let mut rooms = model.rooms(reserve);
        limits.iter().for_each(|(group, left)| rooms.limit(GroupId(*group), *left));
        let decision = model.tick(&mut tiering, vec![u], rooms, 1);
        decision.moves.first().map(|one| one.addr)
    };
    assert_eq!(victim(&[u, own, other], &[]), Some(own.addr));
    assert_eq!(victim(&[u, other], &[]), None, "another group's is not touched");
    assert_eq!(victim(&[u, own, other], &[(1, -4096)]), Some(other.addr));
    assert_eq!(victim(&[u, own, other], &[(1, 0)]), Some(own.addr), "at its limit, not above");
}

#[test]
fn a_group_gives_what_it_has_beyond_its_own_to_one_that_lacks_it() {
    let u = unit(0, 2, 5, FROM_0);
    let others: Vec<Unit> =
        (1..4).map(|nth| Unit { group: GroupId(1), ..unit(nth, 0, 8, FROM_0) }).collect();
    let victims = |mode, lacking: [i64; 2]| {
        let (mut tiering, reserve) = tiering(mode);
        let hot = (4..7).map(|nth| unit(nth, 2, 5, FROM_0));
        let demand: Vec<Unit> = [u].into_iter().chain(hot).collect();
        let units = demand.iter().chain(&others).copied().collect();
        let mut model = Model::new(units, [16, 0, 9, 9]);
        let mut rooms = model.rooms(Reserve { bytes: 16 * OS_PAGE, ..reserve });
        (0..2).for_each(|nth| rooms.entitle(GroupId(nth), lacking[usize::from(nth)] * 4096));
        let moves = model.tick(&mut tiering, demand, rooms, 1).moves;
        moves.iter().filter(|one| one.to.0 >= 2).count()
    };
    for mode in [Mode::Opm, Mode::Opmx, Mode::Benefit] {
        // However hot it is: a guarantee would mean nothing else.
        assert_eq!(victims(mode, [9, -2]), 2, "{mode:?}: no more than it has beyond its own");
        assert_eq!(victims(mode, [1, -3]), 1, "{mode:?}: no more than is lacking");
        assert_eq!(victims(mode, [0, -3]), 0, "{mode:?}: to none that has its own");
        assert_eq!(victims(mode, [9, 0]), 0, "{mode:?}: nothing of its own");
    }
}

#[test]
fn a_group_at_its_limit_exchanges_within_itself() {
    let (u, v) = (unit(0, 2, 5, FROM_0), unit(1, 0, 1, FROM_0));
    for mode in [Mode::Cpm, Mode::Opm, Mode::Benefit] {
        let (mut tiering, reserve) = tiering(mode);
        let mut model = Model::new(vec![u, v], [MUCH; 4]);
        let mut rooms = model.rooms(reserve);
        rooms.limit(GroupId(0), 0);
        let decision = model.tick(&mut tiering, vec![u], rooms, 1);
        let expected = if mode == Mode::Cpm { 0 } else { 2 };
        assert_eq!(decision.moves.len(), expected, "{mode:?}");
    }
}

#[test]
fn benefit_takes_what_gains_most_and_nothing_that_does_not_pay() {
    let rare = unit(0, 2, 1, FROM_0);
    let decide = |u: Unit, v: Unit, free, estimate: &tiercel_policy::pages::Estimate| {
        let (mut tiering, reserve) = tiering(Mode::Benefit);
        let mut model = Model::new(vec![u, v], free);
        let rooms = model.rooms(reserve);
        let now = Situation { demand: vec![u], residents: &mut model, rooms, estimate, window: 1 };
        tiering.tick(now).moves.iter().map(|one| (one.addr, one.to.0)).collect::<Vec<_>>()
    };
    let v = unit(1, 0, 0, FROM_0);
    let cheap = estimate();
    let dear =
        tiercel_policy::pages::Estimate { move_ns_per_byte: 19.0, weight: 1.0, ..estimate() };
    assert_eq!(decide(rare, v, [MUCH; 4], &cheap), [(rare.addr, 0)]);
    assert_eq!(decide(rare, v, [MUCH; 4], &dear), [], "0.13/s x 112 ns x 30 s is below 78 us");
    let warm = Unit { level: 4, ..v };
    let hot = unit(0, 2, 6, FROM_0);
    assert_eq!(decide(hot, v, [16, 0, 0, 0], &cheap), [(hot.addr, 0), (v.addr, 2)]);
    let near = Unit { level: 5, ..v };
    assert_eq!(decide(Unit { level: 5, ..hot }, near, [16, 0, 0, 0], &cheap), []);
    // With room in remote DRAM, 160 ns less without a victim beat 224 ns less with a warm one.
    assert_eq!(decide(hot, warm, [16, MUCH, 9, 9], &cheap), [(hot.addr, 1)]);
}

#[test]
fn benefit_needs_more_than_the_error_of_both_rates() {
    let moved = |hot: Unit, cold: Unit| {
        let (mut tiering, reserve) = tiering(Mode::Benefit);
        let mut model = Model::new(vec![hot, cold], [16, 0, 0, 0]);
        let rooms = model.rooms(reserve);
        model.tick(&mut tiering, vec![hot], rooms, 1).moves.len()
    };
    let level = |hot, cold| moved(unit(0, 2, hot, FROM_0), unit(1, 0, cold, FROM_0));
    assert_eq!([7, 6, 5, 4].map(|cold| level(8, cold)), [0, 0, 2, 2]);
    assert_eq!([2, 1, 0].map(|cold| level(3, cold)), [0, 0, 2]);
    // Levels are full where samples are counted.
    let counted = |hot: f64, cold: f64| {
        let of = |nth, node, samples| Unit { samples: Some(samples), ..unit(nth, node, 8, FROM_0) };
        moved(of(0, 2, hot), of(1, 0, cold))
    };
    // 80 +- 9 of eight windows against 72 +- 8, or against 60 +- 8.
    assert_eq!([9.0, 7.5].map(|cold| counted(10.0, cold)), [0, 2]);
    assert_eq!(counted(7.5, 10.0), 0);
}

#[test]
fn benefit_lets_two_sockets_dram_change_places() {
    let (here, there) = (unit(0, 1, 6, FROM_0), unit(1, 0, 6, FROM_1));
    let decide = |partner: Unit| {
        let found = moves(Mode::Benefit, &[here, partner], [16, 16, 9, 9], &[&[0]]);
        found.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(decide(there), [(0, 0), (1, 1)]);
    let idle = unit(1, 0, 0, Accessor::Unknown);
    assert_eq!(decide(idle), [(0, 0), (1, 1)], "what is idle stays in DRAM");
}

#[test]
fn a_short_history_counts_for_what_it_is() {
    let (hot, cold) = (unit(0, 2, 8, FROM_0), unit(1, 0, 6, FROM_0));
    let early = |windows, accessed| Some(Early { windows, accessed });
    let moved = |hot: Unit, cold: Unit| {
        let (mut tiering, reserve) = tiering(Mode::Benefit);
        let mut model = Model::new(vec![hot, cold], [16, 0, 0, 0]);
        let rooms = model.rooms(reserve);
        model.tick(&mut tiering, vec![hot], rooms, 1).moves.len()
    };
    let at = |unit: Unit, early| Unit { early, ..unit };
    assert_eq!(moved(at(hot, early(2, 2)), at(cold, early(2, 0))), 2, "hot for never accessed");
    assert_eq!(moved(at(hot, early(2, 1)), at(cold, early(2, 2))), 0, "for something hotter");
    assert_eq!(moved(at(hot, early(0, 0)), at(cold, early(0, 0))), 0, "nothing is known yet");
    let rate = |unit| estimate().rate_per_s(&unit);
    assert!(rate(at(hot, early(2, 2))) < rate(at(hot, early(7, 7))), "a longer one proves more");
    assert!(rate(at(hot, early(7, 7))) < rate(hot));
    assert_eq!(rate(at(cold, early(2, 0))), 0.0);
}

#[test]
fn what_moves_back_and_forth_is_locked() {
    let (mut tiering, reserve) = tiering(Mode::Benefit);
    let mut model = Model::new(vec![unit(0, 2, 5, FROM_0)], [MUCH; 4]);
    let mut moved = Vec::new();
    for window in 0..60 {
        model.units[0].accessor = if window % 4 < 2 { FROM_0 } else { FROM_1 };
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, vec![model.units[0]], rooms, window);
        model.carry_out(&mut tiering, &decision, window);
        if !decision.moves.is_empty() {
            moved.push(window);
        }
    }
    // The second time at 2; then again after 32 windows, when its accessor is the other one.
    assert_eq!(moved, [0, 2, 2 + LOCK_WINDOWS + 2, 2 + LOCK_WINDOWS + 4]);
}

#[test]
fn too_many_of_them_stop_all_moves() {
    let (mut tiering, reserve) = tiering(Mode::Benefit);
    let units: Vec<Unit> = (0..100).map(|nth| unit(nth, 2, 5, FROM_0)).collect();
    let mut model = Model::new(units, [MUCH; 4]);
    let mut stopped = 0;
    for window in 0..20 {
        let from = if window % 2 == 0 { FROM_0 } else { FROM_1 };
        model.units.iter_mut().for_each(|unit| unit.accessor = from);
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, model.units.clone(), rooms, window);
        model.carry_out(&mut tiering, &decision, window);
        stopped += u64::from(decision.is_stopped);
    }
    assert_eq!(stopped, 18, "from the third window on");
}

#[test]
fn what_was_refused_is_neither_locked_nor_counted() {
    let (mut tiering, reserve) = tiering(Mode::Benefit);
    let units: Vec<Unit> = (0..100).map(|nth| unit(nth, 2, 5, FROM_0)).collect();
    let mut model = Model::new(units, [MUCH; 4]);
    for window in 0..20 {
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, model.units.clone(), rooms, window);
        assert_eq!((decision.moves.len(), decision.locked), (100, 0), "window {window}");
        assert!(!decision.is_stopped);
    }
}

#[test]
fn what_cannot_be_moved_is_no_victim_for_a_while() {
    let units = [unit(0, 2, 8, FROM_0), unit(1, 0, 0, FROM_0), unit(2, 0, 1, FROM_0)];
    for mode in [Mode::Opm, Mode::Opmx, Mode::Benefit] {
        let (mut tiering, reserve) = tiering(mode);
        let mut model = Model::new(units.to_vec(), [0, 0, 9, 9]);
        let rooms = model.rooms(reserve);
        let mut victim = |tiering: &mut Tiering, window| {
            let moves = model.tick(tiering, vec![units[0]], rooms.clone(), window).moves;
            moves.iter().find(|one| one.to.0 >= 2).map(|one| one.addr)
        };
        assert_eq!(victim(&mut tiering, 1), Some(units[1].addr), "{mode:?}");
        tiering.could_not_move(units[1].key(), 1);
        assert_eq!(victim(&mut tiering, 2), Some(units[2].addr), "{mode:?}");
        assert_eq!(victim(&mut tiering, 1 + LOCK_WINDOWS), Some(units[1].addr), "{mode:?}");
    }
}

#[test]
fn what_stays_says_why() {
    let (hot, cold) = (unit(0, 2, 8, FROM_0), unit(1, 0, 1, FROM_0));
    let why = |mode, units: &[Unit], free| -> Vec<Stay> {
        let (mut tiering, reserve) = tiering(mode);
        let mut model = Model::new(units.to_vec(), free);
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, units.to_vec(), rooms, 1);
        assert_eq!(decision.stays.len() as u64, decision.stayed);
        decision.stays.iter().map(|stayed| stayed.why).collect()
    };
    assert_eq!(why(Mode::Cpm, &[hot], [MUCH; 4]), [], "it moves");
    assert_eq!(why(Mode::Cpm, &[hot], [0, 0, MUCH, MUCH]), [Stay::NoRoom]);
    assert_eq!(why(Mode::Cpm, &[cold], [MUCH; 4]), [Stay::Settled]);
    assert_eq!(why(Mode::Opm, &[hot, cold], [0, 0, MUCH, MUCH]), [Stay::Leaving]);
    assert_eq!(why(Mode::Benefit, &[hot], [0; 4]), [Stay::NoRoom], "it would gain");
    let new = Unit { early: Some(Early { windows: 0, accessed: 0 }), ..hot };
    assert_eq!(why(Mode::Benefit, &[new], [MUCH; 4]), [Stay::New]);
    let idle = unit(0, 2, 0, FROM_0);
    let all = why(Mode::Benefit, &[idle], [MUCH; 4]);
    let cost_ns = -2.0 * OS_PAGE as f64;
    assert!(matches!(all[..], [Stay::NoGain { net_ns, .. }] if net_ns == cost_ns), "{all:?}");
}

#[test]
fn halves_of_an_exchange_name_each_other() {
    let hot = (0..3).map(|nth| unit(nth, 2, 8, FROM_0));
    let cold = (3..6).map(|nth| unit(nth, 0, 1, FROM_0));
    let units: Vec<Unit> = hot.chain(cold).collect();
    let needs = |mode, free| {
        let (mut tiering, reserve) = tiering(mode);
        let mut model = Model::new(units.clone(), free);
        let rooms = model.rooms(reserve);
        let decision = model.tick(&mut tiering, units[..3].to_vec(), rooms, 1);
        let to: Vec<u16> = decision.moves.iter().map(|one| one.to.0).collect();
        (to, decision.needs)
    };
    let (first, second) = (None, Some);
    for mode in [Mode::Opmx, Mode::Benefit] {
        let expected = vec![first, first, second(0), second(1), first, second(4)];
        assert_eq!(needs(mode, [2, 0, 0, 0]), (vec![0, 0, 2, 2, 0, 2], expected), "{mode:?}");
        let expected = vec![first, second(0), first, second(2), first, second(4)];
        let by_slow = (vec![2, 0, 2, 0, 2, 0], expected);
        assert_eq!(needs(mode, [0, 0, 1, 0]), by_slow, "{mode:?}: no free byte on node 0");
        assert_eq!(needs(mode, [0; 4]), (vec![], vec![]), "{mode:?}: none at all");
    }
    let expected = vec![first, second(0), first, second(2), first, second(4)];
    assert_eq!(needs(Mode::Opm, [0, 0, 9, 9]).1, expected);
}

#[test]
fn a_slow_node_keeps_bytes_for_exchanges() {
    let (u, v) = (unit(0, 3, 5, FROM_0), unit(1, 0, 1, FROM_0));
    let moves = |mode, kept| {
        let (mut tiering, reserve) = tiering(mode);
        let mut model = Model::new(vec![u, v], [0, 0, 4, 4]);
        let mut rooms = model.rooms(reserve);
        rooms.keep_slow(&[(NodeId(0), 9 * OS_PAGE), (NodeId(2), kept), (NodeId(3), kept)]);
        model.tick(&mut tiering, vec![u], rooms, 1).moves.len()
    };
    assert_eq!(moves(Mode::Opm, 3 * OS_PAGE), 2);
    assert_eq!(moves(Mode::Opm, 4 * OS_PAGE), 0, "no victim may take what is kept");
}

#[test]
fn machines_without_a_choice_are_refused() {
    let mut one = machine_of(1);
    assert_eq!(Places::new(&one, 100.0).err(), Some(PlacesError::OneTier));
    one.nodes[0].cpus = tiercel_machine::CpuList::default();
    let two = machine_of(2);
    assert_eq!(Places::new(&two, 100.0).err(), Some(PlacesError::NoCpus));
    assert!(places().latencies_known);
}

fn machine_of(nodes: u16) -> Machine {
    let node = |id: u16| {
        let mut node = tiercel_machine::Node::new(NodeId(id), 1 << 30);
        node.tier = Some(id);
        node
    };
    Machine { name: "few".to_owned(), nodes: (0..nodes).map(node).collect(), ..Machine::default() }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let read = |text: &str| toml::from_str::<PagesConfig>(text).expect("a table");
    assert_eq!(read("").mode, Mode::Benefit);
    assert!(read("mode = 'opm-bd'\nhistory = 8\nreserve = '2 MiB'").check().is_ok());
    for (text, name) in [
        ("history = 0", "pages.history"),
        ("history = 9", "pages.history"),
        ("window_ms = 19", "pages.window_ms"),
    ] {
        assert_eq!(read(text).check().expect_err(text).name, name);
    }
    let large = PagesConfig { reserve: 513, ..PagesConfig::default() };
    assert_eq!(large.check_reserve(1024).expect_err("half").name, "pages.reserve");
    assert!(toml::from_str::<PagesConfig>("mode = 'lru'").is_err());
    for mode in Mode::ALL {
        assert_eq!(toml::Value::try_from(mode).expect("a word").as_str(), Some(mode.name()));
        assert_eq!(mode.name().parse(), Ok(mode));
    }
    assert!("lru".parse::<Mode>().expect_err("none").contains("opm-bd"));
}

#[test]
fn a_decision_is_the_same_again() {
    let units: Vec<Unit> =
        (0..9).map(|nth| unit(nth, (nth % 4) as u16, nth as u8, FROM_0)).collect();
    for mode in Mode::ALL {
        let once = || {
            let mut model = Model::new(units.clone(), [1, 2, 3, 4]);
            let rooms = model.rooms(Reserve::default());
            model.tick(&mut Tiering::new(mode, places()), units.clone(), rooms, 1)
        };
        assert_eq!(once(), once(), "{mode:?}");
    }
}
