//! Everything a daemon can say of itself in figures: while it runs (`status`) and when it ends.
//! In: counters. Out: [`Summary`], plain data. Knows nothing of how it is shown.

use crate::clients::sites::SiteRow;
use crate::moves::log::MoveTotals;
use crate::net::handshake::Refused;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use tiercel_policy::TrialResult;
use tiercel_profile::Profile;

/// Kinds of problems kept; each is counted.
pub const PROBLEMS_MAX: usize = 64;

/// TrialResult assignments kept one by one, 200 bytes each.
pub const JUDGED_MAX: usize = 64;

/// What happened so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Time since the daemon began, milliseconds.
    pub elapsed_ms: u64,
    /// Name of the machine, real or on paper.
    pub machine: String,
    /// Labels of the machine's nodes, by number.
    pub nodes: BTreeMap<u16, String>,
    /// Moves are kept in books only; nothing was moved.
    pub modelled: bool,
    /// What the mover wants said about itself; empty when there is nothing.
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
    /// Objects by their lives.
    pub objects: ObjectCounts,
    /// Moves.
    pub moves: MoveTotals,
    /// Assignments of tiers made.
    pub decisions: u64,
    /// Why the last tick assigned tiers or did not.
    pub trigger: String,
    /// What moves saved, expected against measured.
    pub benefit: Benefit,
    /// Bytes left in the wrong tier, by reason, summed over the assignments.
    pub left_bytes: BTreeMap<String, u64>,
    /// Budget and use of the best tier, bytes.
    pub budget: BudgetState,
    /// What became of the plan, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<crate::plan::runner::PlanSummary>,
    /// Time spent by us.
    pub spent: Spent,
    /// What did not work, or could not be done, and how often.
    pub problems: BTreeMap<String, u64>,
}

/// Hosted processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientCounts {
    /// Here now.
    pub now: u64,
    /// Ever attached.
    pub attached: u64,
    /// Replaced by themselves: exec, or attached anew.
    pub replaced: u64,
    /// Turned away.
    pub refused: RefusedCounts,
    /// Reasons of runtimes that stepped aside, and how many did.
    pub stepped_aside: BTreeMap<String, u64>,
}

/// [`Refused`] as data.
pub type RefusedCounts = BTreeMap<String, u64>;

/// Records and their losses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordCounts {
    /// Drained.
    pub drained: u64,
    /// Lost by full rings, or malformed.
    pub lost: u64,
    /// Object tables read again because of it.
    pub resyncs: u64,
}

/// Samples by what they hit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Seen.
    pub seen: u64,
    /// Hit an object.
    pub attributed: u64,
    /// Hit an object that was gone within its interval.
    pub ephemeral: u64,
    /// Stacks, globals, freed memory.
    pub outside: u64,
    /// Dropped by the kernel or by us.
    pub lost: u64,
    /// Times the kernel slowed the source down.
    pub throttled: u64,
    /// Looks that were due and not taken, because the process is too large to look at (probe).
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
    /// Births refused: the ledger was full, or they could not be true.
    #[serde(default)]
    pub refused: u64,
    /// Extents that live.
    pub extents: u64,
    /// Bytes of live objects.
    pub live_bytes: u64,
    /// Most bytes of live objects over all processes.
    pub peak_bytes: u64,
}

/// What moves saved, expected against measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Benefit {
    /// Assignments by verdict: `paid`, `not-paid`, `unclear`, `taken-back`, `unmeasured`.
    pub verdicts: BTreeMap<String, u64>,
    /// The last ones, oldest first.
    pub last: VecDeque<TrialResult>,
}

impl Benefit {
    /// Adds what was judged.
    pub fn extend(&mut self, judged: Option<TrialResult>) {
        let Some(judged) = judged else { return };
        *self.verdicts.entry(crate::moves::log::kebab(&judged.verdict)).or_default() += 1;
        if self.last.len() == JUDGED_MAX {
            self.last.pop_front();
        }
        self.last.push_back(judged);
    }
}

/// Budget and use of the best tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BudgetState {
    /// As the user gave it.
    pub fast: String,
    /// In bytes now.
    pub fast_bytes: u64,
    /// Bytes of live objects there at the last tick with programs.
    pub used_bytes: u64,
}

/// CPU time spent by the daemon, nanoseconds. The parts are parts of [`Spent::cpu_ns`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// CPU time of the daemon's thread, and of the mover's where it has one.
    pub cpu_ns: u64,
    /// Draining rings into the ledger.
    pub records_ns: u64,
    /// Sampling: observing processes, draining samples into the ledger.
    pub samples_ns: u64,
    /// Closing intervals and counting what lives.
    pub ledger_ns: u64,
    /// Deciding.
    pub policy_ns: u64,
    /// Looking where memory is, and moving it (on a thread of its own where moves are real).
    pub mover_ns: u64,
    /// CPU time that sampling took from programs, estimated.
    pub theirs_ns: u64,
    /// Ticks.
    pub ticks: u64,
    /// Ticks that decided nothing because moves were still under way.
    pub ticks_busy: u64,
    /// Wake-ups of the loop.
    pub wakeups: u64,
}

impl Spent {
    /// What is no part: greeting clients, burying them, answering, waking up.
    pub fn other_ns(&self) -> u64 {
        let parts = [self.records_ns, self.samples_ns, self.ledger_ns, self.policy_ns];
        self.cpu_ns.saturating_sub(parts.iter().sum::<u64>() + self.mover_ns)
    }
}

/// What a daemon leaves behind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Farewell {
    /// All figures.
    pub summary: Summary,
    /// All sites, those that deserve fast memory most first.
    pub sites: Vec<SiteRow>,
    /// What was recorded, where that was asked for; functions have no names yet.
    #[serde(skip)]
    pub profile: Option<Box<Profile>>,
}

impl Summary {
    /// Counts a problem. Texts are bounded in number: numbers in them are not wanted.
    pub fn problem(&mut self, text: String) {
        if self.problems.len() < PROBLEMS_MAX || self.problems.contains_key(&text) {
            *self.problems.entry(text).or_default() += 1;
        } else {
            *self.problems.entry("further problems".to_owned()).or_default() += 1;
        }
    }
}

/// Those turned away for any reason that happened.
pub(crate) fn refused(refused: &Refused, control: u64) -> RefusedCounts {
    let all = [
        ("another user", refused.user),
        ("another version", refused.version),
        ("not a greeting", refused.garbage),
        ("no usable memfd", refused.memfd),
        ("silent", refused.silent),
        ("too many", refused.full),
        ("control connection", control),
    ];
    all.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
}
