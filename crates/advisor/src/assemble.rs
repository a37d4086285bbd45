//! From the planner's answer to a plan by site, size class and phase.
//! In: a profile, the workload made from it, memories, the planner's answer. Out: a [`Plan`].
//! Knows nothing of files, nor of how placements are found.
//!
//! The planner decides for each object and for every entry of a phase; a run knows an object by its
//! site and size class, and a phase by its name. So the objects of one class vote together, in each
//! phase by name: the memory with most of their bytes is their place. Where two memories have a
//! part each, births are split between them in proportion to the bytes; of large objects, each one
//! is split: the ranges that most of them have in the faster memory are there.

use std::collections::{BTreeMap, HashMap};

use tiercel_machine::{Machine, NodeId};
use tiercel_planner::{Memory, Placement, Workload, evaluate, object_cost, score_ns};

use crate::prefetch::{Prefetch, followers};
use crate::throughput::{Throughput, planned_moves};
use crate::votes::{Choice, Class, Names, Votes, phase_names};
use tiercel_machine::number::{index_u8, index_u32};
use tiercel_plan::numbered;
use tiercel_plan::{
    CLASS_MIN, Expected, Plan, PlanOptions, PlannedClass, PlannedFrame, PlannedMachine,
    PlannedMemory, PlannedModule, PlannedPhase, PlannedPlacement, PlannedProgram, PlannedRange,
    PlannedSite, Unplanned,
};
use tiercel_profile::site_label;
use tiercel_profile::{Profile, Site};

/// What each object of a workload is in the profile, index for index.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    /// Index of their site.
    pub site: u32,
    /// As [`crate::Object::size_class`].
    pub size_class: u32,
    /// Blocks of small slots that several sites share.
    pub is_mixed: bool,
    /// How many allocations it is.
    pub count: u64,
    /// Samples that hit them.
    pub samples: u64,
    /// Of a part of a larger object: which part.
    pub range: Option<PlannedRange>,
}

/// What a plan is made from.
pub struct Assembly<'a> {
    /// What was observed.
    pub profile: &'a Profile,
    /// The profile as the planner sees it.
    pub workload: &'a Workload,
    /// What its objects are, index for index.
    pub groups: &'a [Group],
    /// The machine.
    pub machine: &'a Machine,
    /// Its memories as the planner had them, with the capacity that the plan may fill.
    pub memories: &'a [Memory],
    /// The planner's answer.
    pub found: &'a tiercel_planner::Placements,
    /// How fast objects move.
    pub throughput: Throughput,
    /// What was held back of the fastest memory, with a margin, bytes.
    pub held_back_bytes: u64,
    /// The options it was requested with.
    pub options: PlanOptions,
    /// Where objects go that the plan does not know.
    pub unplanned: Unplanned,
}

/// Turns the planner's answer, which is by object, into a plan by site.
pub fn assemble(assembly: &Assembly<'_>) -> Plan {
    let names = phase_names(assembly.workload);
    let by_phase = assembly.found.placements.iter().any(|placement| !placement.moves.is_empty());
    let (mut classes, mut small) = (BTreeMap::<(u32, u32), Class>::new(), Votes::default());
    for (index, group) in assembly.groups.iter().enumerate() {
        let votes = votes_of(assembly, index, &names, by_phase);
        if group.is_mixed {
            votes.values().for_each(|votes| small.absorb(votes));
            continue;
        }
        let class = classes.entry((group.site, group.size_class.max(CLASS_MIN))).or_default();
        class.objects += group.count;
        class.samples += group.samples;
        class.peak_bytes += assembly.workload.objects[index].bytes;
        for (phase, votes) in votes {
            class.phases.entry(phase).or_default().absorb(&votes);
        }
    }
    let run = assembly.profile.runs.last();
    let mut plan = Plan {
        program: run.map_or(PlannedProgram::default(), |run| PlannedProgram {
            path: run.program.clone(),
            build_id: run.build_id.clone(),
        }),
        machine: planned_machine(assembly),
        options: assembly.options.clone(),
        expected: Expected::default(),
        unplanned: assembly.unplanned,
        small_objects: small.choice().map(|choice| node_of(assembly, choice.memory)),
        phases: Vec::new(),
        modules: Vec::new(),
        sites: Vec::new(),
    };
    if by_phase {
        plan.phases = planned_phases(assembly.workload, &names, &classes);
    }
    add_sites(&mut plan, assembly, &names, &classes);
    let small_gain = small.choice().map_or(0.0, |choice| small.gain_of(choice));
    plan.expected = expected(assembly, &names, &classes, &plan, small_gain);
    plan
}

/// The memory of one object in each phase, by the phase's name; without moves, all phases are one.
fn votes_of(
    assembly: &Assembly<'_>,
    index: usize,
    names: &Names<'_>,
    by_phase: bool,
) -> BTreeMap<usize, Votes> {
    let (workload, object) = (assembly.workload, &assembly.workload.objects[index]);
    let placement: &Placement = &assembly.found.placements[index];
    let (first, last) = workload.phases_of(object);
    let (mut at, mut moves) = (placement.birth, placement.moves.iter().peekable());
    let mut uses = object.uses.iter().peekable();
    let mut votes: BTreeMap<usize, Votes> = BTreeMap::new();
    for phase in first..=last {
        if let Some((_, to)) = moves.next_if(|(one, _)| *one as usize == phase) {
            at = *to;
        }
        let name = if by_phase { names.of_phase[phase] } else { 0 };
        let entry = votes.entry(name).or_default();
        let vote = entry.part(assembly.groups[index].range);
        vote.bytes[usize::from(at)] += object.bytes as f64;
        let Some(one) = uses.next_if(|one| one.phase as usize == phase) else { continue };
        let slowest = &assembly.memories[assembly.memories.len() - 1];
        for (gain_ns, memory) in vote.gain_ns.iter_mut().zip(assembly.memories) {
            *gain_ns += score_ns(one, slowest, memory, workload.sample_period);
        }
        entry.used |= one.reads + one.writes > 0.0;
    }
    votes
}

fn node_of(assembly: &Assembly<'_>, memory: usize) -> NodeId {
    assembly.memories[memory].nodes.first().copied().unwrap_or(NodeId(index_u8(memory).into()))
}

fn planned_machine(assembly: &Assembly<'_>) -> PlannedMachine {
    let memories = assembly.memories.iter().enumerate().map(|(rank, memory)| PlannedMemory {
        name: memory.name.clone(),
        nodes: match memory.nodes.is_empty() {
            true => vec![node_of(assembly, rank)],
            false => memory.nodes.clone(),
        },
        capacity_bytes: memory.capacity_bytes,
    });
    PlannedMachine {
        name: assembly.machine.name.clone(),
        memories: memories.collect(),
        held_back_bytes: assembly.held_back_bytes,
        moves: planned_moves(assembly.memories, &assembly.throughput, |rank| {
            node_of(assembly, rank)
        }),
    }
}

/// What the plan is expected to do by site, which is all that a run distinguishes: less than the
/// planner promises by object.
fn expected(
    assembly: &Assembly<'_>,
    names: &Names<'_>,
    classes: &BTreeMap<(u32, u32), Class>,
    plan: &Plan,
    small_gain_ns: f64,
) -> Expected {
    let (workload, promise) = (assembly.workload, &assembly.found.promise);
    let fastest = |object| object_cost(workload, object, &assembly.memories[0]).time_ns;
    let by_site = |(index, group): (usize, &Group)| {
        let class = classes.get(&(group.site, group.size_class.max(CLASS_MIN)));
        let class = class.filter(|_| !group.is_mixed && !plan.phases.is_empty());
        class.map_or(Placement::default(), |class| {
            placement(workload, (index, group.range), names, class)
        })
    };
    let placements: Vec<Placement> = assembly.groups.iter().enumerate().map(by_site).collect();
    let (_, moves) = evaluate(workload, assembly.memories, &assembly.throughput.copy, &placements);
    let moved = placements.iter().zip(&workload.objects);
    let gain_ns: f64 =
        plan.placements().map(|placement| placement.gain_ns).sum::<f64>() + small_gain_ns;
    Expected {
        access_ns: promise.in_last.time_ns - gain_ns + moves.time_ns,
        in_slowest_ns: promise.in_last.time_ns,
        in_fastest_ns: workload.objects.iter().map(fastest).sum(),
        moved_bytes: moved.map(|(one, object)| object.bytes * one.moves.len() as u64).sum(),
        gap: promise.gap,
        time: None,
    }
}

/// Where an object, or a part of one, goes when its class decides; whole objects of classes that
/// are split stay where they are.
fn placement(
    workload: &Workload,
    (index, range): (usize, Option<PlannedRange>),
    names: &Names<'_>,
    class: &Class,
) -> Placement {
    let whole = |phase: usize| {
        let choice = class.place_in(names.of_phase[phase]).or(class.usual())?;
        choice.place().memory_of(range).map(index_u8)
    };
    let (first, last) = workload.phases_of(&workload.objects[index]);
    let mut at = whole(first);
    let birth = at.unwrap_or(0);
    let mut moves = Vec::new();
    for phase in first + 1..=last {
        let to = whole(phase);
        if let (Some(from), Some(to)) = (at, to)
            && from != to
        {
            moves.push((index_u32(phase), to));
        }
        at = to.or(at);
    }
    Placement { birth, moves }
}

/// A phase moves objects when a class has another place in it than in the phase before.
fn planned_phases(
    workload: &Workload,
    names: &Names<'_>,
    classes: &BTreeMap<(u32, u32), Class>,
) -> Vec<PlannedPhase> {
    let mut moves = vec![false; names.names.len()];
    for two in names.of_phase.windows(2) {
        moves[two[1]] |= two[0] != two[1]
            && classes.values().any(|class| {
                let (from, to) = (class.place_in(two[0]), class.place_in(two[1]));
                from.is_some() && to.is_some() && from != to
            });
    }
    debug_assert_eq!(workload.phases.len(), names.of_phase.len());
    let named = names.names.iter().zip(moves);
    let of_name = named.zip(followers(names)).map(|((name, moves), next)| PlannedPhase {
        name: (*name).to_owned(),
        moves,
        next: next.map(|next| names.names[next].to_owned()),
    });
    of_name.collect()
}

fn add_sites(
    plan: &mut Plan,
    assembly: &Assembly<'_>,
    names: &Names<'_>,
    classes: &BTreeMap<(u32, u32), Class>,
) {
    let mut modules: HashMap<PlannedModule, u32> = HashMap::new();
    let mut sites: BTreeMap<u32, Vec<PlannedClass>> = BTreeMap::new();
    let prefetch =
        prefetch_of(assembly, names, classes, !plan.phases.is_empty() && assembly.options.prefetch);
    for ((site, size_class), class) in classes {
        let placements = placements_of(assembly, class, names, !plan.phases.is_empty());
        if placements.is_empty() {
            continue;
        }
        sites.entry(*site).or_default().push(PlannedClass {
            up_to_bytes: 1 << size_class,
            objects: class.objects,
            peak_bytes: class.peak_bytes,
            placements,
            prefetch: prefetch.get(&(*site, *size_class)).map_or(Vec::new(), |phases| {
                phases.iter().map(|phase| names.names[*phase].to_owned()).collect()
            }),
        });
    }
    for (index, classes) in sites {
        let site = &assembly.profile.sites[index as usize];
        let stack = stack(site, &mut plan.modules, &mut modules);
        plan.sites.push(PlannedSite {
            hash: site.hash,
            label: planned_label(site),
            stack,
            classes,
        });
    }
    plan.sites.sort_by(|a, b| (&a.label, a.hash).cmp(&(&b.label, b.hash)));
}

/// For each class, the phases in which its objects may already move for the next one.
fn prefetch_of(
    assembly: &Assembly<'_>,
    names: &Names<'_>,
    classes: &BTreeMap<(u32, u32), Class>,
    wanted: bool,
) -> BTreeMap<(u32, u32), Vec<usize>> {
    if !wanted {
        return BTreeMap::new();
    }
    let class =
        |group: &Group| (!group.is_mixed).then_some((group.site, group.size_class.max(CLASS_MIN)));
    let class_of: Vec<Option<(u32, u32)>> = assembly.groups.iter().map(class).collect();
    let mut members: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
    for (object, key) in class_of.iter().enumerate().filter_map(|(at, key)| Some((at, (*key)?))) {
        members.entry(key).or_default().push(object);
    }
    let prefetch = Prefetch {
        workload: assembly.workload,
        names,
        classes,
        class_of,
        members,
        fast_bytes: assembly.memories[0].capacity_bytes,
        slowest: assembly.memories.len() - 1,
    };
    prefetch.by_class()
}

/// How plans name a site: its place in the source, with a number if a large object has a site of
/// its own.
pub fn planned_label(site: &Site) -> String {
    let outermost = site.frames.last().map(|f| (!f.module.is_empty(), f.address));
    match numbered(outermost) {
        0 => site_label(site),
        number => format!("{} #{number}", site_label(site)),
    }
}

fn stack(
    site: &Site,
    list: &mut Vec<PlannedModule>,
    known: &mut HashMap<PlannedModule, u32>,
) -> Vec<PlannedFrame> {
    let frames = site.frames.iter().map(|frame| {
        let name = frame.names.first();
        let module = (!frame.module.is_empty()).then(|| {
            let module = PlannedModule {
                path: frame.module.to_string(),
                build_id: frame.build_id.to_string(),
            };
            *known.entry(module).or_insert_with_key(|module| {
                list.push(module.clone());
                index_u32(list.len()) - 1
            })
        });
        PlannedFrame {
            module,
            offset: frame.address,
            function: name.map_or(String::new(), |name| name.function.to_string()),
            file: name.map_or(String::new(), |name| name.file.to_string()),
            line: name.map_or(0, |name| name.line),
        }
    });
    frames.collect()
}

/// The usual place first, then those of phases that have another one, by name.
fn placements_of(
    assembly: &Assembly<'_>,
    class: &Class,
    names: &Names<'_>,
    by_phase: bool,
) -> Vec<PlannedPlacement> {
    let Some(usual) = class.usual() else { return Vec::new() };
    let confidence = 1.0 - 1.0 / (class.samples.max(1) as f64).sqrt();
    let made = |phase: Option<usize>, choice: Choice, gain_ns: f64| PlannedPlacement {
        phase: phase.map(|phase| names.names[phase].to_owned()),
        node: node_of(assembly, choice.memory),
        other: choice.other.map(|other| node_of(assembly, other)),
        ranges: choice.planned_ranges(),
        gain_ns,
        confidence,
    };
    let (mut others, mut usual_gain) = (Vec::new(), 0.0);
    for (phase, votes) in &class.phases {
        match votes.choice() {
            Some(choice) if by_phase && choice != usual => {
                others.push(made(Some(*phase), choice, votes.gain_of(choice)));
            }
            _ => usual_gain += votes.gain_of(usual),
        }
    }
    others.sort_by(|a, b| a.phase.cmp(&b.phase));
    let mut places = vec![made(None, usual, usual_gain)];
    places.append(&mut others);
    places
}
