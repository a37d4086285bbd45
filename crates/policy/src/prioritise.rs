//! Which extents deserve the best tier (MAT 3.4.2).
//! In: extents. Out: a number each, larger for those that deserve more. Knows nothing of budgets.

use tiercel_ledger::{Extent, Ledger, RateEstimates};

use crate::routine::Prioritise;
use crate::tiers::Tiers;

/// A priority as an unsigned number, so that priorities of any routine compare and sort alike.
pub(crate) type Key = u32;

/// Resolution of priorities that are times. 32 bits of 16 ms are 2.2 years.
const TIME_STEP_MS: u64 = 16;

/// The priority of an extent that lies in tier `rank`; `None` when an expression gives no number.
#[inline]
pub(crate) fn key(
    prioritise: &Prioritise,
    extent: &Extent,
    tiers: &Tiers,
    rank: u8,
    (ledger, estimates): (&Ledger, &RateEstimates),
) -> Option<Key> {
    let bytes = extent.footprint_bytes().max(1) as f32;
    match prioritise {
        Prioritise::Fifo => Some(of_time(extent.born_ms)),
        Prioritise::FirstCome => Some(Key::MAX - of_time(extent.born_ms)),
        Prioritise::Lru => Some(extent.last_access_ms.map_or(0, of_time)),
        Prioritise::Apb => Some(of_float(extent.accesses_per_s() / bytes)),
        Prioritise::Cpb => {
            let cost_ns_per_s = estimates.estimate(extent).cost_ns_per_s;
            Some(of_float(cost_ns_per_s * tiers.slowdown(rank) / bytes))
        }
        Prioritise::Expression(expression) => {
            let value = expression.value(&values(extent, ledger));
            (!value.is_nan()).then(|| of_float(value))
        }
    }
}

/// In the order of [`crate::VARIABLES`].
fn values(extent: &Extent, ledger: &Ledger) -> [f32; crate::VARIABLES.len()] {
    let now_ms = ledger.now_ms();
    let seconds_since = |ms: u64| now_ms.saturating_sub(ms) as f32 / 1e3;
    let accesses = extent.accesses_per_s();
    let idle_s = seconds_since(extent.last_access_ms.unwrap_or(extent.born_ms));
    [
        accesses,
        extent.reads_per_s,
        extent.writes_per_s,
        extent.footprint_bytes() as f32,
        extent.bytes as f32,
        seconds_since(extent.born_ms),
        ledger.lifetime_ms(extent) as f32 / 1e3,
        idle_s,
        extent.latency_ns,
        extent.cost_ns_per_s,
    ]
}

fn of_time(ms: u64) -> Key {
    Key::try_from(ms / TIME_STEP_MS).unwrap_or(Key::MAX)
}

/// The bits of a float, transformed so that they order as the floats do (IEEE 754: sign and
/// magnitude).
fn of_float(value: f32) -> Key {
    // -0 and 0 have the same priority.
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_order_as_floats(a in any::<f32>(), b in any::<f32>()) {
            prop_assert_eq!(of_float(a).cmp(&of_float(b)), a.partial_cmp(&b).expect("no NaN"));
        }
    }

    #[test]
    fn both_zeros_are_one_priority() {
        assert_eq!(of_float(0.0), of_float(-0.0));
        assert!(of_float(f32::NEG_INFINITY) < of_float(0.0));
    }
}
