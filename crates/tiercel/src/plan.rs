//! `tiercel plan`: makes a plan from a profile, and explains it.
//! In: [`PlanArgs`], a profile. Out: a plan's file, a table, an explanation.
//! Knows nothing of how placements are found.

use crate::engine::described;
use crate::plan_args::PlanArgs;
use crate::table::{Align, Table};
use crate::terminal::{printable, say};
use anyhow::{Result, bail};
use std::fmt::Write;
use std::time::Duration;
use tiercel_advisor::{PlanResult, advise, peak_bytes};
use tiercel_machine::{NodeId, short_bytes};
use tiercel_plan::{
    Basis, Plan, PlannedClass, PlannedPlacement, PlannedRange, PlannedSite, write_plan,
};
use tiercel_planner::{Object, Objective, Utility, score_ns, utilities, utility};
use tiercel_profile::{Frame, Profile, site_label};

/// Costs of moves that are shown: between two memories; of more the file has the others.
const MOVES_SHOWN: usize = 2;

/// `tiercel plan`.
pub fn plan(args: &PlanArgs) -> Result<()> {
    let profile = tiercel_profile::read(&args.profile)?;
    let machine = match &args.request.machine {
        Some(name) => described(name)?,
        None => profile.machine.clone(),
    };
    let peak = peak_bytes(&profile);
    let result = advise(&profile, &machine, &args.request.request(args.request.fast, peak))?;
    if let Some(site) = &args.explain {
        return say(&explain(&profile, &result, site)?);
    }
    if args.json {
        return say(&result.plan.to_json()?);
    }
    let output = args.output.clone().unwrap_or_else(|| args.profile.with_extension("plan"));
    write_plan(&result.plan, &output)?;
    let mut text = table(&result.plan, args.rows);
    text.push_str(&promise(&result, peak));
    for remark in &result.remarks {
        let _ = writeln!(text, "remark     {}", printable(remark));
    }
    let _ = writeln!(text, "written    {}", output.display());
    say(&text)
}

/// Columns of a plan's table.
pub const PLAN_COLUMNS: [(&str, Align); 8] = [
    ("size", Align::Right),
    ("objects", Align::Right),
    ("each up to", Align::Right),
    ("gain", Align::Right),
    ("confidence", Align::Right),
    ("born in", Align::Left),
    ("phases", Align::Left),
    ("where", Align::Left),
];

/// Places by gain.
fn table(plan: &Plan, rows: usize) -> String {
    let mut table = Table::new(&PLAN_COLUMNS);
    let (cells, rest) = plan_cells(plan, rows);
    cells.into_iter().for_each(|cells| table.row(cells));
    let mut text = table.text();
    if rest > 0 {
        let _ = writeln!(text, "... and {rest} more; --rows shows them, --json all");
    }
    text
}

/// Rows of a plan's table, those with most gain first; and how many more there are.
pub fn plan_cells(plan: &Plan, rows: usize) -> (Vec<Vec<String>>, usize) {
    let mut classes: Vec<(&PlannedSite, &PlannedClass)> =
        plan.sites.iter().flat_map(|site| site.classes.iter().map(move |c| (site, c))).collect();
    let gain =
        |class: &PlannedClass| class.placements.iter().map(|place| place.gain_ns).sum::<f64>();
    classes.sort_by(|a, b| {
        gain(b.1).total_cmp(&gain(a.1)).then_with(|| b.1.peak_bytes.cmp(&a.1.peak_bytes))
    });
    let rest = classes.len().saturating_sub(rows);
    let cells = classes.into_iter().take(rows).map(|(site, class)| {
        let usual = &class.placements[0];
        let phases = class.placements[1..].iter().map(|place| {
            let name = place.phase.as_deref().unwrap_or_default();
            format!("{name}: {}", nodes(plan, place))
        });
        vec![
            short_bytes(class.peak_bytes),
            class.objects.to_string(),
            short_bytes(class.up_to_bytes),
            seconds(gain(class)),
            format!("{:.0}%", usual.confidence * 100.0),
            nodes(plan, usual),
            phases.collect::<Vec<_>>().join(", "),
            site.label.clone(),
        ]
    });
    (cells.collect(), rest)
}

/// `DDR5`, `DDR5 40% CXL 60%` of births or of each object from its head on, or `DDR5 from 37.5 to
/// 50% CXL 87.5%` of each object.
pub fn nodes(plan: &Plan, place: &PlannedPlacement) -> String {
    let name = |node| memory_name(plan, node);
    match place.other {
        None => name(place.node),
        Some(other) => {
            let rest = percent(1.0 - place.share());
            format!("{} {}% {} {rest}%", name(place.node), ranges(place), name(other))
        }
    }
}

/// `40`, or `from 37.5 to 50 and from 75 to 80`.
fn ranges(place: &PlannedPlacement) -> String {
    if let [head @ PlannedRange { from: 0.0, .. }] = &place.ranges[..] {
        return percent(head.to);
    }
    let range = |one: &PlannedRange| format!("from {} to {}", percent(one.from), percent(one.to));
    place.ranges.iter().map(range).collect::<Vec<_>>().join(" and ")
}

/// Tenths, where there are any.
fn percent(share: f64) -> String {
    ((share * 1000.0).round() / 10.0).to_string()
}

fn memory_name(plan: &Plan, node: NodeId) -> String {
    match plan.rank_of(node) {
        Some(rank) => plan.machine.memories[rank].name.clone(),
        None => format!("node{node}"),
    }
}

fn promise(result: &PlanResult, peak_bytes: u64) -> String {
    let (plan, promise) = (&result.plan, &result.found.promise);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "room       {} of {} fast ({} of a peak of {}), strategy {}, objective {}",
        short_bytes(plan.fast_bytes()),
        plan.machine.name,
        plan.options.fast,
        short_bytes(peak_bytes),
        plan.options.strategy,
        plan.options.objective,
    );
    text.push_str(&costs(plan));
    text.push_str(&expected_line(plan));
    let proven = match (promise.proven, promise.gap) {
        (true, _) => "the strategy's optimum, proven".to_owned(),
        (false, Some(gap)) => format!("at most {:.2}% below the optimal gain", gap * 100.0),
        (false, None) => "unknown: this strategy computes none".to_owned(),
    };
    let _ = writeln!(text, "bound      {proven}");
    text
}

fn expected_line(plan: &Plan) -> String {
    let expected = &plan.expected;
    let gain = expected.in_slowest_ns - expected.access_ns;
    let most = expected.in_slowest_ns - expected.in_fastest_ns;
    let share = if most > 0.0 { gain / most * 100.0 } else { 0.0 };
    format!(
        "expected   {} of accesses, {} all slow, {} all fast: {share:.0}% of the possible gain; {} \
         moved\n",
        seconds(expected.access_ns),
        seconds(expected.in_slowest_ns),
        seconds(expected.in_fastest_ns),
        short_bytes(expected.moved_bytes),
    )
}

/// The reserve, and the assumed costs of moves.
fn costs(plan: &Plan) -> String {
    let mut text = String::new();
    let held_back = plan.machine.held_back_bytes;
    if held_back > 0 {
        let held_back = short_bytes(held_back);
        let _ = writeln!(text, "reserved   {held_back} for objects that the plan does not cover");
    }
    let name = |node| match plan.rank_of(node) {
        Some(rank) => plan.machine.memories[rank].name.as_str(),
        None => "?",
    };
    let moves = plan.machine.moves.iter().take(MOVES_SHOWN).map(|one| {
        let basis = match one.basis {
            Basis::Measured => "measured",
            Basis::Scaled => "scaled from a measurement",
            Basis::Described => "from the description",
        };
        let (from, to) = (printable(name(one.from)), printable(name(one.to)));
        format!("{from} to {to} {:.2} ns a byte, {basis}", one.ns_per_byte)
    });
    let moves: Vec<String> = moves.collect();
    let _ = writeln!(text, "moves      {}", moves.join("; "));
    text
}

/// Everything about the objects of some places.
fn explain(profile: &Profile, result: &PlanResult, wanted: &str) -> Result<String> {
    let is_wanted = |index: usize| {
        let site = &profile.sites[index];
        site_label(site).contains(wanted) || format!("{:016x}", site.hash) == wanted
    };
    let sites: Vec<usize> = (0..profile.sites.len()).filter(|index| is_wanted(*index)).collect();
    if sites.is_empty() {
        bail!(
            "no site of the profile matches {wanted:?}; `tiercel plan --rows 1000` lists the sites"
        );
    }
    let mut text = String::new();
    for index in sites {
        explain_site(&mut text, profile, result, index)?;
    }
    Ok(text)
}

fn explain_site(
    text: &mut String,
    profile: &Profile,
    result: &PlanResult,
    index: usize,
) -> Result<()> {
    let site = &profile.sites[index];
    writeln!(text, "{} (site {:016x})", printable(&site_label(site)), site.hash)?;
    site.frames.iter().for_each(|frame| text.push_str(&frame_line(frame)));
    let plan = &result.plan;
    let planned = plan.sites.iter().find(|planned| planned.hash == site.hash);
    let Some(planned) = planned else {
        writeln!(
            text,
            "    not in the plan: its objects are placed like those of unplanned sites"
        )?;
        return Ok(());
    };
    for class in &planned.classes {
        writeln!(
            text,
            "  objects up to {}: {} of them, {} at most at a time",
            short_bytes(class.up_to_bytes),
            class.objects,
            short_bytes(class.peak_bytes),
        )?;
        for place in &class.placements {
            let phase = place.phase.as_deref().map_or("usually".to_owned(), |p| format!("in {p}"));
            writeln!(
                text,
                "    {} in {}: gain {}, {:.0}% confidence",
                printable(&phase),
                nodes(plan, place),
                seconds(place.gain_ns),
                place.confidence * 100.0
            )?;
        }
        text.push_str(&scores(result, index, class));
    }
    Ok(())
}

fn frame_line(frame: &Frame) -> String {
    let module = frame.module.rsplit('/').next().unwrap_or_default();
    let name = frame.names.first();
    let name = name.map_or(String::new(), |n| format!("{} {}:{}", n.function, n.file, n.line));
    format!("    {} {}+{:#x}\n", printable(&name), printable(module), frame.address)
}

/// What each memory would cost, per object that the planner saw, summed over the class.
fn scores(result: &PlanResult, site: usize, class: &PlannedClass) -> String {
    let (workload, memories) = (&result.input.workload, &result.memories);
    let slowest = &memories[memories.len() - 1];
    let of_class: Vec<&Object> = of_class(result, site, class);
    let (mut gains, mut bytes, mut reads, mut writes) = (vec![0.0; memories.len()], 0, 0.0, 0.0);
    for object in &of_class {
        bytes += object.bytes;
        for one in &object.uses {
            reads += one.reads;
            writes += one.writes;
            for (memory, gain) in memories.iter().zip(&mut gains) {
                *gain += score_ns(one, slowest, memory, workload.sample_period);
            }
        }
    }
    let mut text = format!("    {reads:.0} reads, {writes:.0} writes\n");
    for (memory, gain) in memories.iter().zip(&gains) {
        let _ = writeln!(
            text,
            "    all in {}: {} less than in {}, {} for each MiB",
            memory.name,
            seconds(*gain),
            slowest.name,
            seconds(gain / (bytes.max(1) as f64 / (1 << 20) as f64)),
        );
    }
    text.push_str(&utility_line(result, &of_class));
    let price = result.found.prices.first().filter(|price| **price > 0.0);
    if let Some(price) = price {
        let per_mib = seconds(price * (1 << 20) as f64);
        let _ = writeln!(text, "    a MiB of the fastest memory is worth {per_mib} in this plan");
    }
    text
}

/// The planner's objects of a class, of which a large one may be several.
fn of_class<'a>(result: &'a PlanResult, site: usize, class: &PlannedClass) -> Vec<&'a Object> {
    let all = result.groups.iter().zip(&result.input.workload.objects);
    let own = all.filter(|(group, _)| {
        group.site as usize == site && 1u64 << group.size_class.max(12) == class.up_to_bytes
    });
    own.map(|(_, object)| object).collect()
}

/// U of OAM Eq. 1: lowest and highest over the objects, and over their phases.
fn utility_line(result: &PlanResult, objects: &[&Object]) -> String {
    let (workload, memories) = (&result.input.workload, &result.memories);
    let lives = objects.iter().map(|object| utility(workload, object, memories));
    let phases = objects.iter().flat_map(|object| utilities(workload, object, memories));
    let knows_energy = memories.iter().all(|memory| memory.energy.is_some());
    let objective = if knows_energy { Objective::EnergyDelay } else { Objective::Time };
    let (lives, phases): (Vec<Utility>, Vec<Utility>) = (lives.collect(), phases.collect());
    let most = |of: &dyn Fn(&Utility) -> f64| between(&lives, of);
    let factors = match knows_energy {
        true => format!("delay {} x energy {}", most(&|one| one.delay), most(&|one| one.energy)),
        false => "of delay alone: energies are unknown".to_owned(),
    };
    let (whole, by_phase) =
        (most(&|one| one.of(objective)), between(&phases, &|one| one.of(objective)));
    format!("    utility (OAM) {whole}, {factors}; by phase {by_phase}\n")
}

/// `3.05`, or `0.00 to 3.05`.
fn between(all: &[Utility], of: &dyn Fn(&Utility) -> f64) -> String {
    let least = all.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = all.iter().map(of).fold(0.0, f64::max);
    if format!("{least:.2}") == format!("{most:.2}") {
        return format!("{most:.2}");
    }
    format!("{least:.2} to {most:.2}")
}

/// Nanoseconds as people read them.
fn seconds(ns: f64) -> String {
    let sign = if ns < 0.0 { "-" } else { "" };
    format!("{sign}{:.2?}", Duration::from_nanos(tiercel_machine::number::saturating_u64(ns.abs())))
}
