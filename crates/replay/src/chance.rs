//! Chance from a seed: the same seed gives the same numbers on every machine.
//! In: a seed. Out: numbers. Knows nothing of what is decided by them.

use tiercel_machine::number::saturating_u64;

/// A generator of numbers (SplitMix64: Steele, Lea, Flood, OOPSLA 2014): one word of state, and
/// good enough for thinning and for choosing places.
#[derive(Clone, Debug)]
pub struct Chance {
    state: u64,
}

/// Fractional bits of a number in [0, 1): those of an `f64`.
const UNIT_BITS: u32 = 53;

impl Chance {
    /// Numbers of a seed.
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
    }

    /// A seed of a text and a seed: streams of different names differ.
    pub fn of(text: &str, seed: u64) -> Chance {
        // FNV-1a, whose low bits the generator's mixing spreads.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Chance::new(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// 64 even bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An even number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> (u64::BITS - UNIT_BITS)) as f64 / (1u64 << UNIT_BITS) as f64
    }

    /// An even number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        saturating_u64(self.unit() * end as f64).min(end - 1)
    }

    /// The distance to the next event of a Poisson process whose events are `mean` apart.
    pub fn gap(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }

    /// The numbers below `end` in a random order.
    pub fn order(&mut self, end: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..end).collect();
        for place in (1..end).rev() {
            let other = tiercel_machine::number::index(self.below(place as u64 + 1));
            order.swap(place, other);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_names_differ() {
        let numbers = |mut chance: Chance| -> Vec<u64> { (0..4).map(|_| chance.bits()).collect() };
        assert_eq!(numbers(Chance::new(7)), numbers(Chance::new(7)));
        assert_ne!(numbers(Chance::of("a", 7)), numbers(Chance::of("b", 7)));
        assert_ne!(numbers(Chance::of("a", 7)), numbers(Chance::of("a", 8)));
    }

    #[test]
    fn gaps_have_their_mean_and_orders_everything_once() {
        let mut chance = Chance::new(1);
        let mean = (0..20_000).map(|_| chance.gap(5.0)).sum::<f64>() / 20_000.0;
        assert!((mean - 5.0).abs() < 0.15, "{mean}");
        let mut order = chance.order(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
        assert!((0..1000).all(|_| chance.below(3) < 3));
    }
}
