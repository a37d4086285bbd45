//! A profile over time: which objects lived and were accessed when, and how much lived in all.
//! In: a [`Profile`]. Out: a [`Timeline`], for pictures. Knows nothing of how it is drawn.
//!
//! Runs follow one another on one axis, as for the planner. A column is some whole time slots.

use std::collections::BTreeMap;

use crate::assemble::planned_label;
use crate::input::PlannerInput;
use tiercel_plan::CLASS_MIN;
use tiercel_profile::{Access, Object, Profile};

/// Most columns: what a picture of usual width can show.
pub const COLUMNS_MAX: u64 = 160;

/// Most lives of a row of many objects; later ones are added to the last.
const LIVES_MAX: usize = 64;

/// Objects and phases over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Length of the axis, nanoseconds.
    pub end_ns: u64,
    /// Length of a column, nanoseconds.
    pub column_ns: u64,
    /// Rows with most accesses first; one more has the rest.
    pub rows: Vec<TimelineRow>,
    /// Most bytes that lived at a time in each column.
    pub live_bytes: Vec<u64>,
    /// Phases that the planner goes by, ascending: name, start, end, nanoseconds.
    pub phases: Vec<(String, u64, u64)>,
}

/// One object, several objects of one place, or all objects without a row of their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimelineRow {
    /// Hash of the site and size class as plans know them; `None` for the rest.
    pub class: Option<(u64, u32)>,
    /// What plans call the site; empty for the rest.
    pub place: String,
    /// How many allocations.
    pub objects: u64,
    /// Bytes of the largest.
    pub bytes: u64,
    /// When any of it lived: start, end, nanoseconds, ascending and apart.
    pub lives: Vec<(u64, u64)>,
    /// Accesses in each column.
    pub accesses: Vec<f64>,
}

/// Objects of a row under construction: indices into [`PlannerInput`].
struct Members {
    input: Vec<usize>,
    accesses: f64,
    peak_bytes: u64,
}

impl Timeline {
    /// The profile over time, at most `rows_max` rows and one for the rest. Objects have a row each
    /// while there are no more than that, else those of one site and size class have one.
    pub fn of(profile: &Profile, rows_max: usize) -> Timeline {
        timeline(profile, rows_max)
    }
}

fn timeline(profile: &Profile, rows_max: usize) -> Timeline {
    let input = PlannerInput::of(profile);
    let workload = &input.workload;
    let slots = workload.end_ns.div_ceil(profile.slot_ns.max(1));
    let column_ns = profile.slot_ns.max(1).saturating_mul(slots.div_ceil(COLUMNS_MAX).max(1));
    let columns = usize::try_from(workload.end_ns.div_ceil(column_ns)).unwrap_or(usize::MAX);
    let mut of_object: Vec<&[Access]> = vec![&[]; profile.objects.len()];
    for part in profile.accesses.chunk_by(|a, b| a.object == b.object) {
        of_object[part[0].object as usize] = part;
    }
    let mut groups = members(profile, &input, &of_object, rows_max);
    groups.sort_by(|a, b| b.accesses.total_cmp(&a.accesses).then(b.peak_bytes.cmp(&a.peak_bytes)));
    let rest: Vec<usize> =
        groups.iter().skip(rows_max).flat_map(|group| group.input.iter().copied()).collect();
    groups.truncate(rows_max);
    let row = |members: &[usize], is_rest| {
        row(profile, &input, &of_object, members, is_rest, (column_ns, columns))
    };
    let mut rows: Vec<TimelineRow> = groups.iter().map(|group| row(&group.input, false)).collect();
    if !rest.is_empty() {
        rows.push(row(&rest, true));
    }
    let starts = workload.phases.iter().map(|phase| phase.start_ns);
    let ends = starts.skip(1).chain([workload.end_ns]);
    let phases = workload.phases.iter().zip(ends);
    Timeline {
        end_ns: workload.end_ns,
        column_ns,
        rows,
        live_bytes: live_bytes(&input, column_ns, columns),
        phases: phases.map(|(one, end)| (one.name.clone(), one.start_ns, end)).collect(),
    }
}

fn members(
    profile: &Profile,
    input: &PlannerInput,
    of_object: &[&[Access]],
    rows_max: usize,
) -> Vec<Members> {
    let apart = input.objects.len() <= rows_max;
    let mut groups: BTreeMap<(u64, u32, usize), Members> = BTreeMap::new();
    for (at, index) in input.objects.iter().enumerate() {
        let object = &profile.objects[*index as usize];
        let class = class(profile, object);
        let own = if apart { at } else { 0 };
        let empty = || Members { input: Vec::new(), accesses: 0.0, peak_bytes: 0 };
        let group = groups.entry((class.0, class.1, own)).or_insert_with(empty);
        group.input.push(at);
        group.peak_bytes = group.peak_bytes.saturating_add(object.peak_bytes);
        let accesses = of_object[*index as usize].iter();
        group.accesses += accesses.map(|access| access.accesses() as f64).sum::<f64>();
    }
    groups.into_values().collect()
}

fn class(profile: &Profile, object: &Object) -> (u64, u32) {
    (profile.site_of(object).hash, object.size_class().max(CLASS_MIN))
}

fn row(
    profile: &Profile,
    input: &PlannerInput,
    of_object: &[&[Access]],
    members: &[usize],
    is_rest: bool,
    (column_ns, columns): (u64, usize),
) -> TimelineRow {
    let mut row = TimelineRow { accesses: vec![0.0; columns], ..TimelineRow::default() };
    let mut lives = Vec::with_capacity(members.len());
    for at in members {
        let (planned, index) = (&input.workload.objects[*at], input.objects[*at]);
        let object = &profile.objects[index as usize];
        row.objects = row.objects.saturating_add(object.count);
        row.bytes = row.bytes.max(object.bytes);
        lives.push((planned.birth_ns, planned.death_ns));
        if !is_rest {
            row.class = Some(class(profile, object));
            row.place = planned_label(profile.site_of(object));
        }
        // Where the object's run begins on the axis.
        let base_ns = planned.birth_ns - object.birth_ns;
        for access in of_object[index as usize] {
            let middle = u64::from(access.slot) * profile.slot_ns + profile.slot_ns / 2;
            let column = usize::try_from((base_ns + middle) / column_ns).unwrap_or(usize::MAX);
            if let Some(last) = columns.checked_sub(1) {
                row.accesses[column.min(last)] += access.accesses() as f64;
            }
        }
    }
    row.lives = joined(lives);
    row
}

/// Joins intervals that touch, and all intervals beyond [`LIVES_MAX`].
fn joined(mut lives: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    lives.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (start, end) in lives {
        let full = out.len() == LIVES_MAX;
        match out.last_mut() {
            Some(last) if start <= last.1 || full => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

fn live_bytes(input: &PlannerInput, column_ns: u64, columns: usize) -> Vec<u64> {
    let mut changes: Vec<(u64, i128)> = Vec::new();
    for object in &input.workload.objects {
        changes.push((object.birth_ns, i128::from(object.bytes)));
        changes.push((object.death_ns, -i128::from(object.bytes)));
    }
    // At one instant, deaths come first.
    changes.sort_unstable();
    let (mut live, mut changes) = (0i128, changes.into_iter().peekable());
    let column = |at: usize| {
        let end_ns = (at as u64 + 1) * column_ns;
        let mut most = live;
        while let Some((_, change)) = changes.next_if(|(time_ns, _)| *time_ns < end_ns) {
            live += change;
            most = most.max(live);
        }
        u64::try_from(most).unwrap_or(u64::MAX)
    };
    (0..columns).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_profile::{Phase, Process, Run, SLOT_NS_MIN, Site};

    const SLOT: u64 = SLOT_NS_MIN;

    /// Objects of (site, birth, death) in slots, with accesses of (object, slot, reads).
    fn profile(objects: &[(u32, u64, u64)], accesses: &[(u32, u32, u64)]) -> Profile {
        let object = |&(site, birth, death): &(u32, u64, u64)| Object {
            site,
            count: 1,
            bytes: 4096,
            peak_bytes: 4096,
            born_bytes: 4096,
            birth_ns: birth * SLOT,
            death_ns: death * SLOT,
            ..Object::default()
        };
        let access = |&(object, slot, reads): &(u32, u32, u64)| Access {
            object,
            slot,
            reads,
            samples: 1,
            ..Access::default()
        };
        Profile {
            slot_ns: SLOT,
            runs: vec![Run { duration_ns: 10 * SLOT, ..Run::default() }],
            processes: vec![Process::default()],
            sites: (1..4).map(|hash| Site { hash, frames: Vec::new() }).collect(),
            phases: vec![Phase { name: "A".into(), end_ns: 10 * SLOT, ..Phase::default() }],
            objects: objects.iter().map(object).collect(),
            accesses: accesses.iter().map(access).collect(),
            ..Profile::default()
        }
    }

    #[test]
    fn rows_are_by_accesses_and_the_rest_is_one() {
        let objects = [(0, 0, 4), (1, 2, 6), (1, 5, 9), (2, 0, 9)];
        let profile = profile(&objects, &[(0, 1, 5), (1, 2, 50), (2, 7, 50), (3, 3, 1)]);
        let seen = Timeline::of(&profile, 2);
        let shown: Vec<_> = seen.rows.iter().map(|row| (row.class, row.objects)).collect();
        assert_eq!(shown, [(Some((2, 12)), 2), (Some((1, 12)), 1), (None, 1)]);
        assert_eq!(seen.rows[0].lives, [(2 * SLOT, 9 * SLOT)], "they overlap");
        assert_eq!((seen.rows[0].accesses[2], seen.rows[0].accesses[7]), (50.0, 50.0));
        let sum: f64 = seen.rows.iter().flat_map(|row| &row.accesses).sum();
        assert_eq!(sum, 106.0);
        assert_eq!(seen.live_bytes[..6], [8192, 8192, 12288, 12288, 12288, 12288]);
        assert_eq!(Timeline::of(&profile, 4).rows.len(), 4, "few objects have a row each");
    }

    #[test]
    fn runs_follow_one_another() {
        let mut profile = profile(&[(0, 0, 4), (0, 0, 4)], &[(0, 1, 5), (1, 1, 7)]);
        profile.runs.push(profile.runs[0].clone());
        profile.processes.push(Process { run: 1, ..Process::default() });
        profile.objects[1].process = 1;
        profile.phases.push(Phase { run: 1, ..profile.phases[0].clone() });
        profile.accesses[1].phase = 1;
        let seen = Timeline::of(&profile, 1);
        assert_eq!(seen.rows[0].lives.len(), 2);
        assert_eq!(seen.phases.len(), 2);
        let columns: Vec<usize> =
            (0..seen.live_bytes.len()).filter(|at| seen.rows[0].accesses[*at] > 0.0).collect();
        assert_eq!(columns, [1, 11]);
    }

    #[test]
    fn long_runs_have_no_more_columns_and_empty_ones_none_missing() {
        let mut long = profile(&[(0, 0, 100_000)], &[(0, 99_999, 3)]);
        long.runs[0].duration_ns = 100_000 * SLOT;
        let seen = Timeline::of(&long, 5);
        assert!(seen.live_bytes.len() as u64 <= COLUMNS_MAX);
        assert_eq!(seen.rows[0].accesses.last(), Some(&3.0));
        let empty = Timeline::of(&Profile { slot_ns: SLOT, ..Profile::default() }, 5);
        assert!(empty.rows.is_empty());
    }

    #[test]
    fn many_lives_are_bounded() {
        let lives: Vec<(u64, u64)> = (0..1000).map(|at| (at * 10, at * 10 + 1)).collect();
        let joined = joined(lives);
        assert_eq!((joined.len(), joined[LIVES_MAX - 1].1), (LIVES_MAX, 9991));
    }
}
