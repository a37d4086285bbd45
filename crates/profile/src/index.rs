//! Indices as the types that tables keep them in.
//! In: an index. Out: the same in fewer bits. Knows nothing of what it counts.

/// An index as 32 bits.
///
/// # Panics
/// From 2^32 on, which the limits of a profile ([`crate::check`]) exclude.
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("limits keep indices below 2^32")
}
