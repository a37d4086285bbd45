//! What is known of how hot the objects of a site were.
//! In: live bytes, accesses, deaths. Out: a density of accesses, a mean lifetime. Knows nothing of
//! extents.

/// A mean over less than a MiB for an interval says nothing yet.
pub(crate) const EXPOSURE_MIN: f32 = 1024.0 * 1024.0;

/// What was seen of the objects of one site.
#[derive(Clone, Copy, Default)]
pub(crate) struct SiteHistory {
    pub(crate) live_bytes: u64,
    /// Up to when `exposure` is counted, milliseconds.
    pub(crate) as_of_ms: u64,
    /// Interval the sums speak of.
    pub(crate) interval: u32,
    /// Bytes times intervals lived.
    pub(crate) exposure: f32,
    pub(crate) reads: f32,
    pub(crate) writes: f32,
    pub(crate) stall_ns: f32,
    /// Extents of its objects that were records and died, and how long they lived together.
    pub(crate) deaths: u32,
    pub(crate) lived_ms: u64,
}

/// Accesses by byte in an interval.
#[derive(Clone, Copy)]
pub(crate) struct Density {
    pub(crate) reads: f32,
    pub(crate) writes: f32,
    pub(crate) stall_ns: f32,
}

impl SiteHistory {
    /// The sums as they are after a while.
    pub(crate) fn faded(&self, decay: f32) -> SiteHistory {
        SiteHistory {
            exposure: self.exposure * decay,
            reads: self.reads * decay,
            writes: self.writes * decay,
            stall_ns: self.stall_ns * decay,
            ..*self
        }
    }

    /// Bytes times intervals since `as_of_ms`. What was lived long ago has faded like the accesses
    /// of that time.
    pub(crate) fn lived(&self, now_ms: u64, tick_ms: u64, alpha: f32) -> f32 {
        let elapsed = now_ms.saturating_sub(self.as_of_ms) as f32 / tick_ms as f32;
        let lived =
            if elapsed <= 1.0 { elapsed } else { (1.0 - (1.0 - alpha).powf(elapsed)) / alpha };
        self.live_bytes as f32 * lived
    }

    pub(crate) fn density(&self) -> Option<Density> {
        (self.exposure >= EXPOSURE_MIN && self.reads + self.writes > 0.0).then(|| Density {
            reads: self.reads / self.exposure,
            writes: self.writes / self.exposure,
            stall_ns: self.stall_ns / self.exposure,
        })
    }
}
