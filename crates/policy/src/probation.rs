//! From when on a process is sampled.
//! In: its age and size. Out: whether it is worth it. Knows nothing of samplers.
//!
//! A process that ends early is only counted: shells, compilers and version control start thousands
//! of them. Sampling one costs as much as hosting it, and nothing can be learned from it in time to
//! move anything.

/// Age at which a process is sampled, milliseconds: most compiler runs are over by then.
const AGE_MS: u64 = 250;

/// The same of a process with [`LARGE_BYTES`] of live objects: the first answer about it comes
/// 0.2 s after its start. Chosen, not measured: twice the time of a short tick.
const LARGE_AGE_MS: u64 = 64;

/// Live objects that are worth to be placed although their process may end soon. Chosen, not
/// measured: more than a cache holds, and than most tools of a build have at that age.
const LARGE_BYTES: u64 = 16 << 20;

/// Bytes of live objects at which a process is sampled before that age: the size of the largest
/// extent. Chosen, not measured: compilers stay below it at that age.
pub const PROBATION_BYTES: u64 = 64 << 20;

/// Whether a process of this age with so many bytes of live objects is sampled.
pub fn is_past_probation(age_ms: u64, live_bytes: u64) -> bool {
    age_ms >= AGE_MS
        || age_ms >= LARGE_AGE_MS && live_bytes >= LARGE_BYTES
        || live_bytes >= PROBATION_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_the_sooner() {
        for (age_ms, live_bytes, want) in [
            (250, 0, true),
            (249, LARGE_BYTES - 1, false),
            (64, LARGE_BYTES, true),
            (63, PROBATION_BYTES - 1, false),
            (0, PROBATION_BYTES, true),
        ] {
            assert_eq!(is_past_probation(age_ms, live_bytes), want, "{age_ms} {live_bytes}");
        }
    }
}
