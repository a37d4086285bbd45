//! Indices as the types that tables keep them in.
//! In: an index. Out: the same in fewer bits. Knows nothing of what it counts.

/// An index as 32 bits.
///
/// # Panics
/// From 2^32 on, which the limits of a workload ([`crate::OBJECTS_MAX`]) exclude.
pub fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("limits keep indices below 2^32")
}

/// The rank of a memory as 8 bits.
///
/// # Panics
/// From 256 on; there are at most [`MEMORIES_MAX`](crate::MEMORIES_MAX) memories.
pub fn index_u8(index: usize) -> u8 {
    u8::try_from(index).expect("there are fewer than 256 memories")
}
