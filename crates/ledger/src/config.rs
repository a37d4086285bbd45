//! Settings of a ledger: extent size, aggregation, limits.
//! In: numbers. Out: a checked [`Config`]. Knows nothing of where they were written down.

use tiercel_wire::layout::OS_PAGE_BYTES;

/// Largest extent: a row counts its OS pages per node in 22 bits.
pub const EXTENT_BYTES_MAX: u64 = 8 << 30;

/// Most extents one object is cut into. An object too large for that gets larger extents
/// (64 MiB x 65,536 = 4 TiB), so that no client can fill the ledger with one record.
pub const OBJECT_EXTENTS_MAX: u64 = 65_536;

/// Largest object that is believed: `EXTENT_BYTES_MAX` x `OBJECT_EXTENTS_MAX` = 512 TiB.
pub const OBJECT_BYTES_MAX: u64 = EXTENT_BYTES_MAX * OBJECT_EXTENTS_MAX;

/// Most parts of an interval: 31 ms each at the default of two seconds.
pub const UNITS_MAX: u16 = 64;

/// Misses that a core is taken to keep in flight at a time: latency is divided by it to get stall
/// time. 4 lies between a pointer chase (1) and a stream (10 line-fill buffers and more).
pub(crate) const AT_ONCE: f32 = 4.0;

/// How a ledger works. The defaults are MAT's where MAT has a word on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Objects larger than this are tiered in pieces of at most this size, bytes (MAT 4.5.1).
    pub extent_bytes: u64,
    /// No piece is made smaller than this for a small budget or uneven heat, bytes. As large as
    /// `extent_bytes`: pieces are what they are in MAT.
    pub finest_bytes: u64,
    /// Weight of the newest interval in the average, 0 < alpha <= 1 (MAT Eq. 1, 4.5.1).
    pub alpha: f32,
    /// Nominal time between two ticks, milliseconds (MAT 4.5.1). Rates are per this interval;
    /// a tick that comes late by several intervals closes several.
    pub tick_ms: u64,
    /// Parts of `tick_ms` in which the time between two ticks is counted; 1: whole intervals, as in
    /// MAT. With more, ticks may be shorter than `tick_ms`, and the average does not depend on how
    /// long they are.
    pub units: u16,
    /// Latency taken for samples that carry none, nanoseconds. About one local DRAM access, so that
    /// cost keeps the order of accesses where no latency is measured.
    pub assumed_latency_ns: f32,
    /// Most extents of one process; births beyond are refused and counted.
    pub process_extents_max: u32,
    /// Most extents altogether; births beyond are refused and counted.
    pub extents_max: u32,
    /// What the processes of one group may have together.
    pub of_group: Bounds,
    /// What all processes may have together, extents aside.
    pub of_all: Bounds,
}

/// What processes may have together, whatever they report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Extents; births beyond are refused and counted.
    pub extents: u32,
    /// Sites of which a history is kept, up to the highest number of each process; objects of
    /// further sites are of the unknown site. About 120 bytes each.
    pub sites: u32,
    /// Deaths that came before their births; further ones are forgotten and counted. About 60 bytes
    /// each.
    pub early: u32,
}

impl Default for Bounds {
    /// For processes that trust each other: a million extents were a large run, 65,536 sites are
    /// what one session has, and a ring holds 4096 records.
    fn default() -> Bounds {
        Bounds { extents: u32::MAX, sites: 1 << 18, early: 1 << 18 }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            extent_bytes: 64 << 20,
            finest_bytes: 256 << 10,
            alpha: 0.1,
            tick_ms: 2000,
            units: 1,
            assumed_latency_ns: 100.0,
            process_extents_max: 4 << 20,
            extents_max: 32 << 20,
            of_group: Bounds::default(),
            of_all: Bounds::default(),
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} = {value}: {want}")]
pub struct ConfigError {
    /// The setting.
    pub name: &'static str,
    /// What it was set to.
    pub value: String,
    /// What it must be.
    pub want: &'static str,
}

impl Config {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let err = |name, value: String, want| Err(ConfigError { name, value, want });
        let extent = self.extent_bytes;
        if extent == 0 || !extent.is_multiple_of(OS_PAGE_BYTES) || extent > EXTENT_BYTES_MAX {
            let want = "must be a multiple of 4096 from 4096 to 8 GiB";
            return err("extent_bytes", extent.to_string(), want);
        }
        let finest = self.finest_bytes;
        if finest == 0 || !finest.is_multiple_of(OS_PAGE_BYTES) {
            return err("finest_bytes", finest.to_string(), "must be a multiple of 4096");
        }
        if !(self.alpha > 0.0 && self.alpha <= 1.0) {
            return err("alpha", self.alpha.to_string(), "must be above 0 and at most 1");
        }
        if self.tick_ms == 0 {
            return err("tick_ms", "0".into(), "must be at least 1");
        }
        if !(1..=UNITS_MAX).contains(&self.units) || u64::from(self.units) > self.tick_ms {
            let want = "must be from 1 to 64, and at most one for each millisecond of tick_ms";
            return err("units", self.units.to_string(), want);
        }
        if !(self.assumed_latency_ns > 0.0 && self.assumed_latency_ns.is_finite()) {
            let want = "must be above 0";
            return err("assumed_latency_ns", self.assumed_latency_ns.to_string(), want);
        }
        if self.extents_max >= 1 << 30 || self.process_extents_max > self.extents_max {
            let want = "must be at least process_extents_max and below 2^30";
            return err("extents_max", self.extents_max.to_string(), want);
        }
        Ok(())
    }
}
