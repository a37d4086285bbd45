//! Splits words into fields. In: a word. Out: its parts, and lengths as the types of the wire.
//! Knows nothing of what they mean.

// `index` depends on it.
const _: () = assert!(usize::BITS == u64::BITS, "sessions are for 64-bit machines");

/// Bits 0 to 7.
pub(crate) const fn low8(word: u64) -> u8 {
    (word & 0xFF) as u8
}

/// Bits 0 to 15.
pub(crate) const fn low16(word: u64) -> u16 {
    (word & 0xFFFF) as u16
}

/// Bits 0 to 31.
pub(crate) const fn low32(word: u64) -> u32 {
    (word & 0xFFFF_FFFF) as u32
}

/// Bits 32 to 63.
pub(crate) const fn high32(word: u64) -> u32 {
    (word >> 32) as u32
}

/// A position or a number as an index of the same value.
pub(crate) const fn index(number: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, as asserted above")]
    let same = number as usize;
    same
}

/// An index or a limit of a session as its 32 bits.
///
/// # Panics
/// From 2^32 on; every limit of the layout is below.
pub(crate) fn half(index: usize) -> u32 {
    u32::try_from(index).expect("limits of the layout are below 2^32")
}

/// A length within an entry as its byte.
///
/// # Panics
/// From 256 on; callers truncate to less.
pub(crate) fn byte(length: usize) -> u8 {
    u8::try_from(length).expect("texts of entries are shorter than 256 bytes")
}
