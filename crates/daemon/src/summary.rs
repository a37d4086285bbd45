//! The figures of a daemon: while it runs (`status`), and when it ends.
//! In: counters. Out: [`Summary`] and [`FinalReport`], plain data. Knows nothing of how they are
//! shown.

use crate::clients::client::Client;
use crate::clients::sites::SiteRow;
use crate::moves::log::{MoveTotals, kebab};
use crate::net::arrival::Refused;
use crate::observe::coverage::Coverage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tiercel_learned::RunFigures;
use tiercel_ledger::Ledger;
use tiercel_ledger::confidence::{EvidenceOfAll, Ranking};
use tiercel_machine::Machine;
use tiercel_mover::Mover;
use tiercel_policy::{Decision, Problem, ShadowReport};
use tiercel_profile::Profile;
use tiercel_sampler::Sampler;
use tiercel_wire::Counts;
use tiercel_wire::layout::{
    REMARK_LIMITED, REMARK_MIXED, REMARK_NO_VREGIONS, REMARK_OWN_MALLOC, REMARK_PROBED,
    REMARK_THREADS,
};

/// Kinds of problems that are kept by their text; further ones are counted together. The texts are
/// ours, and there are fewer.
pub const PROBLEMS_MAX: usize = 64;

/// Reasons of runtimes that detached which are kept: a client chooses the text. The runtime has
/// fewer.
const DETACH_REASONS_MAX: usize = 32;

/// What happened so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Time since the daemon began, milliseconds.
    pub elapsed_ms: u64,
    /// Name of the machine, real or modelled.
    pub machine: String,
    /// Labels of the machine's nodes, by number.
    pub nodes: BTreeMap<u16, String>,
    /// Moves are modelled: nothing was copied.
    pub modelled: bool,
    /// What the user must know about the mover before believing a figure; may be empty.
    pub mover_note: String,
    /// Sampler in use.
    pub sampler: String,
    /// What it cannot see.
    pub sampler_note: String,
    /// Pools of memory for programs that place it themselves.
    pub pools: Vec<crate::pools::PoolState>,
    /// Hosted processes.
    pub clients: ClientCounts,
    /// Records and their losses.
    pub records: RecordCounts,
    /// Samples by what they hit.
    pub samples: SampleCounts,
    /// How sure the order of sites is.
    #[serde(default)]
    pub ranking: Ranking,
    /// What the shares of sites rest on.
    #[serde(default)]
    pub evidence: EvidenceOfAll,
    /// Objects by their lives.
    pub objects: ObjectCounts,
    /// How much of the processes' memory is in rows.
    #[serde(default)]
    pub coverage: Coverage,
    /// Moves.
    pub moves: MoveTotals,
    /// Decisions at which the policy assigned tiers.
    pub decisions: u64,
    /// Why the last tick assigned tiers, or why not.
    pub trigger: String,
    /// What moves saved and cost, by group and tier.
    pub shadows: Vec<ShadowReport>,
    /// Bytes that were not moved although they were in the wrong tier, by reason, summed over the
    /// decisions.
    pub left_bytes: BTreeMap<String, u64>,
    /// Budget and use of the best tier, bytes.
    pub budget: BudgetState,
    /// What became of the plan, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanSummary>,
    /// What became of births that earlier runs of the program decided, if any did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<PlanSummary>,
    /// CPU time that the daemon spent.
    pub spent: Spent,
    /// What did not work, and how often.
    pub problems: BTreeMap<String, u64>,
}

/// Hosted processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientCounts {
    /// Attached now.
    pub now: u64,
    /// Ever attached.
    pub attached: u64,
    /// Forked children that did not attach, and are known as their parents had them.
    #[serde(default)]
    pub adopted: u64,
    /// Forked children of which nothing is seen.
    #[serde(default)]
    pub unseen: u64,
    /// Replaced by a new session of the same process: after an exec, or a second attach.
    pub replaced: u64,
    /// Connections that were refused, by reason.
    pub refused: RefusedCounts,
    /// Runtimes that detached by themselves, by reason.
    pub stepped_aside: BTreeMap<String, u64>,
    /// Programs and forked children that have not attached, because they ended or stayed small. Not
    /// counted by a daemon for all users.
    #[serde(default)]
    pub small: u64,
    /// Of those that tried to attach, how many could not.
    #[serde(default)]
    pub failed: u64,
    /// What failed, for the first of them.
    #[serde(default)]
    pub failure: Option<String>,
    /// What the user should know of processes, and of how many.
    #[serde(default)]
    pub remarks: BTreeMap<String, u64>,
    /// Had code that `tiercel cc` compiled.
    #[serde(default)]
    pub probed: u64,
}

impl ClientCounts {
    /// Takes over what processes counted.
    pub(crate) fn counted(&mut self, counts: Counts) {
        self.failed = counts.failed;
        self.failure = counts.failure;
        self.small = counts.began.saturating_sub(counts.attached).saturating_sub(counts.failed);
    }

    /// Counts the remarks of a process.
    pub(crate) fn remarked(&mut self, bits: u32) {
        self.probed += u64::from(bits & REMARK_PROBED != 0);
        for (_, text) in REMARKS.into_iter().filter(|(bit, _)| bits & bit != 0) {
            *self.remarks.entry(text.to_owned()).or_default() += 1;
        }
    }
}

/// What remarks of processes say.
const REMARKS: [(u32, &str); 5] = [
    (REMARK_OWN_MALLOC, "the program brings its own malloc; only what it maps is tracked"),
    (REMARK_LIMITED, "address space or memory is limited: the heap stays ordinary memory"),
    (REMARK_NO_VREGIONS, "memory for vregions could not be had; ordinary memory is used instead"),
    (REMARK_THREADS, "threads run before the program begins: its heap stays ordinary memory"),
    (REMARK_MIXED, "many sites keep much in small objects: the first 63 alone have blocks apart"),
];

/// [`Refused`] by name.
pub type RefusedCounts = BTreeMap<String, u64>;

/// Records and their losses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordCounts {
    /// Drained.
    pub drained: u64,
    /// Lost by full rings, or malformed.
    pub lost: u64,
    /// Object tables read again after losses.
    pub resyncs: u64,
    /// Came after the daemon had gone on to later ones.
    #[serde(default)]
    pub late: u64,
}

/// Samples by what they hit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Seen.
    pub seen: u64,
    /// Hit an object.
    pub attributed: u64,
    /// Hit an object that died within its interval.
    pub ephemeral: u64,
    /// Hit an object that had died when they were read.
    #[serde(default)]
    pub ended: u64,
    /// Of an area that objects of several sites had between two looks, and shared; of one of two
    /// objects around a loss of records, and not counted; or attributed before all records of their
    /// time were there.
    #[serde(default)]
    pub undecided: u64,
    /// Lives of objects that were forgotten, for want of room, while samples of them could come.
    #[serde(default)]
    pub lives_forgotten: u64,
    /// Hit no object: stacks, globals, freed memory.
    pub outside: u64,
    /// Dropped by the kernel or by the daemon.
    pub lost: u64,
    /// Times the kernel throttled the source.
    pub throttled: u64,
    /// Scans that were due and skipped, because the process is too large to scan (probe).
    pub blind: u64,
}

/// Objects by their lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ObjectCounts {
    /// Born.
    pub born: u64,
    /// Bytes born.
    pub born_bytes: u64,
    /// Born and dead within one tick (MAT 3.2.1).
    pub ephemeral: u64,
    /// Births refused: the ledger was full, or they contradicted what it knew.
    #[serde(default)]
    pub refused: u64,
    /// Live extents.
    pub extents: u64,
    /// Bytes of live objects.
    pub live_bytes: u64,
    /// Most bytes of live objects over all processes.
    pub peak_bytes: u64,
}

/// Budget and use of the best tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BudgetState {
    /// As the user wrote it.
    pub fast: String,
    /// In bytes now.
    pub fast_bytes: u64,
    /// Bytes of live objects there at the last tick with clients.
    pub used_bytes: u64,
    /// Bytes of those that were given memory there and had not touched it at the last decision.
    #[serde(default)]
    pub promised_bytes: u64,
}

/// CPU time spent by the daemon, nanoseconds. The parts are parts of [`Spent::cpu_ns`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// CPU time of the daemon's thread, and of the mover's where it has one.
    pub cpu_ns: u64,
    /// Draining rings into the ledger.
    pub records_ns: u64,
    /// Sampling: attaching to processes, draining samples into the ledger.
    pub samples_ns: u64,
    /// Closing intervals and scanning what lives.
    pub ledger_ns: u64,
    /// Deciding.
    pub policy_ns: u64,
    /// Looking up where memory is, and moving it: on a thread of its own where moves are real.
    pub mover_ns: u64,
    /// CPU time that sampling took from programs, estimated.
    pub theirs_ns: u64,
    /// Ticks.
    pub ticks: u64,
    /// Ticks that decided nothing because the mover was busy.
    pub ticks_busy: u64,
    /// Pauses of long work, in which others were served.
    #[serde(default)]
    pub pauses: u64,
    /// Most extents that were looked at without serving others.
    #[serde(default)]
    pub extents_at_once: u64,
    /// Ticks that came a whole tick late, or later.
    pub ticks_late: u64,
    /// The longest delay of a tick, milliseconds.
    pub tick_delay_ms_max: u64,
    /// Wake-ups of the loop.
    pub wakeups: u64,
}

impl Spent {
    /// A tick came, so late.
    pub(crate) fn ticked(&mut self, late_ms: u64, tick_ms: u64) {
        self.ticks += 1;
        self.ticks_late += u64::from(late_ms >= tick_ms);
        self.tick_delay_ms_max = self.tick_delay_ms_max.max(late_ms);
    }

    /// What no part covers: handshakes, departures, requests, wake-ups.
    pub fn other_ns(&self) -> u64 {
        let parts = [self.records_ns, self.samples_ns, self.ledger_ns, self.policy_ns];
        self.cpu_ns.saturating_sub(parts.iter().sum::<u64>() + self.mover_ns)
    }
}

/// What became of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Sites that it has.
    pub sites: u64,
    /// Of those, sites at which the programs allocated.
    pub matched: u64,
    /// Of those, sites that were matched by function and line, in another build.
    pub by_name: u64,
    /// Sites at which no program allocated, those with most bytes first; at most sixteen.
    pub unmatched: Vec<String>,
    /// Bytes born at sites that it has.
    pub planned_bytes: u64,
    /// Bytes born elsewhere; blocks of small allocations are not counted.
    pub unplanned_bytes: u64,
    /// Entries into phases.
    pub phases_entered: u64,
    /// Entries at which something had to be moved.
    pub phases_moved: u64,
    /// Entries that were missed: too many names, or several threads at once.
    pub phases_lost: u64,
    /// Bytes submitted to the mover during the phase before the one that they were for.
    #[serde(default)]
    pub early_bytes: u64,
    /// What of it does not match the machine, and why it was abandoned.
    pub remarks: Vec<String>,
    /// The policy decides about what it does not place, and about all once it is abandoned.
    pub adapt: bool,
}

/// What a daemon reports when it ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalReport {
    /// All figures.
    pub summary: Summary,
    /// All sites, those that deserve fast memory most first.
    pub sites: Vec<SiteRow>,
    /// What was learned for the next run, if that was requested.
    #[serde(skip)]
    pub learned: Option<RunFigures>,
    /// The recorded profile, if one was requested; its functions have no names yet.
    #[serde(skip)]
    pub profile: Option<Box<Profile>>,
}

impl Summary {
    /// The figures that stay the same for the daemon's life.
    pub(crate) fn of(
        machine: &Machine,
        sampler: Option<&dyn Sampler>,
        mover: &dyn Mover,
    ) -> Summary {
        Summary {
            machine: machine.name.clone(),
            nodes: machine.nodes.iter().map(|node| (node.id.0, node.label())).collect(),
            modelled: mover.is_modelled(),
            mover_note: mover.note(),
            sampler: sampler.map_or("none", |sampler| sampler.name()).to_owned(),
            sampler_note: sampler.map(|sampler| sampler.capabilities().text).unwrap_or_default(),
            ..Summary::default()
        }
    }

    /// Counts problems.
    pub(crate) fn problems(&mut self, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.problem(text));
    }

    /// Adds the records of a client.
    pub(crate) fn add_client(&mut self, client: &Client) {
        self.records.drained += client.records;
        self.records.lost += client.lost;
        self.records.resyncs += client.resyncs;
        self.clients.remarked(client.session.header().remarks);
    }

    /// Adds what the ledger counted.
    pub(crate) fn add_ledger(&mut self, ledger: &Ledger) {
        let totals = ledger.totals();
        self.samples.seen = totals.samples;
        self.samples.attributed = totals.samples_attributed;
        self.samples.ephemeral = totals.samples_ephemeral;
        self.samples.ended = totals.samples_of_ended;
        self.samples.undecided = totals.samples_undecided + totals.samples_unsettled;
        self.samples.lives_forgotten = totals.ended_forgotten;
        self.samples.outside = totals.samples_outside;
        self.records.late = totals.records_late;
        self.objects.born = totals.objects_born;
        self.objects.born_bytes = totals.born_bytes;
        self.objects.ephemeral = totals.objects_ephemeral;
        self.objects.refused = totals.births_refused;
        self.objects.extents = ledger.extent_totals().0;
    }

    /// Adds what a decision did not move and why, and the accounts of moves.
    pub(crate) fn add_decision(&mut self, decision: &Decision) {
        self.problems(decision.problems.iter().map(ToString::to_string));
        // Early ticks come before the first samples: later ones say that this was all.
        if decision.summary.is_some() && !decision.problems.contains(&Problem::NoAccesses) {
            self.problems.remove(&Problem::NoAccesses.to_string());
        }
        for refused in decision.summary.iter().flat_map(|summary| &summary.refused) {
            *self.left_bytes.entry(kebab(&refused.why)).or_default() += refused.bytes;
        }
        if !decision.shadows.is_empty() {
            self.shadows.clone_from(&decision.shadows);
        }
        self.decisions += u64::from(decision.summary.is_some());
        self.trigger.clone_from(&decision.trigger);
    }

    /// Counts a runtime that detached by itself.
    pub(crate) fn detached(&mut self, reason: String) {
        let reasons = &mut self.clients.stepped_aside;
        if reasons.len() < DETACH_REASONS_MAX || reasons.contains_key(&reason) {
            *reasons.entry(reason).or_default() += 1;
        }
    }

    /// Counts a problem by its text. Texts without numbers stay few.
    pub fn problem(&mut self, text: String) {
        if self.problems.len() < PROBLEMS_MAX || self.problems.contains_key(&text) {
            *self.problems.entry(text).or_default() += 1;
        } else {
            *self.problems.entry("further problems".to_owned()).or_default() += 1;
        }
    }
}

/// Refused connections, by the reasons that occurred.
pub(crate) fn refused(refused: &Refused, control: u64) -> RefusedCounts {
    let all = [
        ("another user", refused.user),
        ("another version", refused.version),
        ("malformed hello", refused.malformed),
        ("no usable memfd", refused.memfd),
        ("silent", refused.silent),
        ("too many", refused.full),
        ("in a foreign pid namespace", refused.foreign),
        ("ended before it was greeted", refused.ended),
        ("another process than connected", refused.changed),
        ("control connection", control),
    ];
    all.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_before_the_first_samples_is_no_problem_once_there_are_some() {
        let decided = |problems| {
            let summary = Some(tiercel_policy::Summary::default());
            Decision { summary, problems, ..Decision::default() }
        };
        let mut summary = Summary::default();
        summary.add_decision(&decided(vec![Problem::NoAccesses]));
        summary.add_decision(&Decision::default());
        assert_eq!(summary.problems.len(), 1, "nothing was decided since");
        summary.add_decision(&decided(Vec::new()));
        assert!(summary.problems.is_empty());
    }
}
