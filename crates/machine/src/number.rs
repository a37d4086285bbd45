//! Conversions of floating-point numbers to integers.
//! In: `f64`. Out: integers: NaN is 0, what is out of range becomes the nearest value in range, and
//! fractions are cut off. Knows nothing of units.
//!
//! `as` does the same, but does not say whether that was meant: these are the only places that may.

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
    fn out_of_range_saturates_and_fractions_are_cut() {
        assert_eq!([-1.0, f64::NAN, 2.9, 1e30].map(saturating_u64), [0, 0, 2, u64::MAX]);
        assert_eq!([-1.0, f64::NAN, 2.9, 1e30].map(saturating_u32), [0, 0, 2, u32::MAX]);
        assert_eq!([-1.0, f64::NAN, 2.9, 1e30].map(saturating_usize), [0, 0, 2, usize::MAX]);
        assert_eq!([-2.9, f64::NAN, -1e30, 1e30].map(saturating_i64), [-2, 0, i64::MIN, i64::MAX]);
    }
}
