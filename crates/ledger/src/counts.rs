//! What the ledger counts: [`Counts`], [`TickSummary`], [`Characteristics`].
//! In: nothing. Out: plain data. Knows nothing of why something was counted.

use serde::Serialize;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Everything that is counted, over one interval or since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl std::ops::AddAssign<&Counts> for Counts {
            fn add_assign(&mut self, other: &Counts) {
                $(add(&mut self.$name, other.$name);)*
            }
        }
    };
}

/// Programs state sizes, so that a sum of them may be anything: it ends at the largest number.
pub(crate) fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

counts! {
    /// Records applied.
    records,
    /// Records of processes the ledger does not know.
    records_of_unknown_processes,
    /// Records that came after their process was settled past their time.
    records_late,
    /// Births that something newer had overtaken.
    births_overtaken,
    /// Deaths without a live object: their birth is late, or was overtaken.
    deaths_early,
    /// Early deaths and cuts forgotten for want of room; a dead object may stay until a resync.
    early_forgotten,
    /// Births refused: too large to be true, or the ledger is full.
    births_refused,
    /// Bytes of them.
    births_refused_bytes,
    /// Births of sites that there was no room for: they are of the unknown site.
    sites_refused,
    /// Objects born, the ephemeral ones included, those overtaken or refused not.
    objects_born,
    /// Bytes of them.
    born_bytes,
    /// Objects that died after they had become rows.
    objects_died,
    /// Objects born and dead within one interval; they never become rows (MAT 3.2.1).
    objects_ephemeral,
    /// Bytes of them.
    ephemeral_bytes,
    /// Extents that became records.
    extents_recorded,
    /// Bytes that became records.
    recorded_bytes,
    /// Extent records that ended.
    extents_died,
    /// Sum of the lifetimes of those, milliseconds.
    lifetime_ms,
    /// Samples seen.
    samples,
    /// Accesses they stand for.
    sampled_accesses,
    /// Samples that hit an extent that is or became a record.
    samples_attributed,
    /// Samples that hit an object that died before it became a record.
    samples_ephemeral,
    /// Samples that hit an object that had died when they were read.
    samples_of_ended,
    /// Samples of an area that lives of several sites had between two looks, and shared; and those
    /// around a loss of records that two lives may have had, which count for none.
    samples_undecided,
    /// Samples that were attributed before all records of their time were there: too many waited.
    samples_unsettled,
    /// Lives forgotten for want of room before the samplers had passed their end.
    ended_forgotten,
    /// Samples outside all objects: stacks, globals, kernel memory, freed memory.
    samples_outside,
    /// Samples of processes the ledger does not know.
    samples_of_unknown_processes,
    /// Samples that carried a latency.
    samples_with_latency,
    /// Times an object table was read anew.
    resyncs,
    /// Objects that a resync found dead.
    healed_deaths,
    /// Objects that a resync found alive.
    healed_births,
    /// Bytes that movers moved.
    moved_bytes,
    /// Extents dropped from the queue of unknown residency, because it was full.
    unlocated_forgotten,
}

/// What an interval brought.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TickSummary {
    /// Number of the interval that ended, from 0.
    pub interval: u32,
    /// When it ended, daemon's clock.
    pub now_ms: u64,
    /// How long it was.
    pub elapsed_ms: u64,
    /// What was counted in it.
    pub counts: Counts,
    /// Extent records now.
    pub extents: u64,
    /// Bytes of them.
    pub extent_bytes: u64,
}

/// The columns of MAT table 3.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Characteristics {
    /// Most extent records at a tick ("Peak OR").
    pub peak_extents: u64,
    /// Extent records made per second ("OR/sec").
    pub extents_per_s: f64,
    /// Megabytes (10^6) that became records per second ("MB/sec").
    pub mb_per_s: f64,
    /// Mean lifetime of extent records, seconds; those alive count with their age ("Life").
    pub lifetime_mean_s: f64,
    /// Samples that hit an extent record, of all ("LLC"); `None` without samples.
    pub attributed_share: Option<f64>,
}
