//! Conversions between numeric types that `From` does not have.
//! In: a number. Out: the same, or the nearest value in range; of a floating-point number NaN is 0,
//! and fractions are cut off. Knows nothing of units.
//!
//! `as` does the same, but does not say whether that was meant: these are the only places that may.

// `index` depends on it.
const _: () = assert!(usize::BITS == u64::BITS, "Tiercel runs on 64-bit machines");

/// A 64-bit number as an index: the same value.
#[inline]
pub const fn index(number: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, as asserted above")]
    let same = number as usize;
    same
}

/// An index as 32 bits.
///
/// # Panics
/// From 2^32 on, which the limits of ledgers, workloads and profiles exclude.
#[inline]
pub fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("limits keep indices below 2^32")
}

/// An index as 16 bits.
///
/// # Panics
/// From 65,536 on, which the limits of machines and ledgers exclude.
pub fn index_u16(index: usize) -> u16 {
    u16::try_from(index).expect("limits keep indices below 2^16")
}

/// An index as 8 bits.
///
/// # Panics
/// From 256 on, which the limits of tiers and memories exclude.
pub fn index_u8(index: usize) -> u8 {
    u8::try_from(index).expect("limits keep indices below 2^8")
}

/// `value` as a `u32`, at most its largest value.
#[inline]
pub fn clamped_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// `value` as an `i64`, at most its largest value.
#[inline]
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The `f32` next to `value`; infinite when it is too large for one.
#[inline]
pub fn nearest_f32(value: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounds by definition")]
    let nearest = value as f32;
    nearest
}

/// The milliseconds of a duration, fractions cut off.
pub fn whole_ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The nanoseconds of a duration: up to 584 years.
pub fn whole_ns(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// `value * part / whole` without overflow; `whole` is not 0, `part` is at most `whole`.
#[inline]
pub fn share_of(value: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(value) * u128::from(part) / u128::from(whole);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// `value` as a `u64`.
pub fn saturating_u64(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates by definition"
    )]
    let whole = value as u64;
    whole
}

/// `value` as a `u32`.
pub fn saturating_u32(value: f64) -> u32 {
    u32::try_from(saturating_u64(value)).unwrap_or(u32::MAX)
}

/// `value` as a `usize`.
pub fn saturating_usize(value: f64) -> usize {
    usize::try_from(saturating_u64(value)).unwrap_or(usize::MAX)
}

/// `value` as an `i64`.
pub fn saturating_i64(value: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates by definition")]
    let whole = value as i64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_their_value_or_the_nearest() {
        assert_eq!(index(u64::MAX), usize::MAX);
        assert_eq!([7, u64::MAX].map(clamped_u32), [7, u32::MAX]);
        assert_eq!([7, u64::MAX].map(signed), [7, i64::MAX]);
        assert_eq!(share_of(u64::MAX, 3, 4), u64::MAX / 4 * 3 + 2);
        assert_eq!(nearest_f32(0.1), 0.1);
    }

    #[test]
    #[should_panic(expected = "below 2^8")]
    fn an_index_beyond_its_limit_panics() {
        index_u8(256);
    }

    #[test]
    fn out_of_range_saturates_and_fractions_are_cut() {
        assert_eq!([-1.0, f64::NAN, 2.9, 1e30].map(saturating_u64), [0, 0, 2, u64::MAX]);
        assert_eq!([-1.0, f64::NAN, 2.9, 1e30].map(saturating_u32), [0, 0, 2, u32::MAX]);
        assert_eq!([-1.0, f64::NAN, 2.9, 1e30].map(saturating_usize), [0, 0, 2, usize::MAX]);
        assert_eq!([-2.9, f64::NAN, -1e30, 1e30].map(saturating_i64), [-2, 0, i64::MIN, i64::MAX]);
    }
}
