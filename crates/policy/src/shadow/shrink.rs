//! Draws the rates of extents of a site to its mean, as far as chance explains how they differ.
//! In: entries, what lives of each site. Out: their rates and deviations. Knows nothing of moves.
//!
//! Of many extents that are equally hot, those with the most samples look hottest, and those
//! without any look cold: exchanging them gains nothing. Empirical Bayes, by site:
//!
//! ```text
//! m = rate by byte of all of it       spread = variance between extents - that by sampling
//! rate by byte = m + k (its own - m)  k = spread / (spread + its variance by sampling)
//! ```
//! Where extents differ no more than by chance k is 0, and where they differ by much it is 1.

use std::collections::BTreeMap;

use super::follow::Entry;

/// Sums over the extents of a site, for one time constant.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bytes: f64,
    rate: f64,
    /// Of squared rates over bytes.
    squares: f64,
    /// Of squared deviations over bytes.
    noise: f64,
    /// Of rates over bytes.
    density: f64,
}

/// What is known of a site: a mean by byte, the variance between extents, and that by sampling of
/// an extent of one byte.
#[derive(Clone, Copy, Debug, Default)]
struct Prior {
    mean: f64,
    spread: f64,
    noise: f64,
}

impl Sums {
    fn add(&mut self, bytes: f64, rate: f64, deviation: f64) {
        self.bytes += bytes;
        self.rate += rate;
        self.squares += rate * rate / bytes;
        self.noise += deviation * deviation / bytes;
        self.density += rate / bytes;
    }

    /// `live_bytes`: of the site, with the extents that no sample hit. `None`: nothing to go by.
    fn prior(&self, live_bytes: f64) -> Option<Prior> {
        let bytes = live_bytes.max(self.bytes);
        if self.rate <= 0.0 || self.density <= 0.0 {
            return None;
        }
        let (mean, noise) = (self.rate / bytes, self.noise / bytes);
        let spread = (self.squares / bytes - mean * mean - noise).max(0.0);
        // Sampling adds a variance by byte that falls with an extent's bytes.
        let typical_bytes = self.rate / self.density;
        Some(Prior { mean, spread, noise: noise * typical_bytes })
    }
}

impl Prior {
    /// Rate and deviation of an extent.
    fn draw(&self, bytes: f64, rate: f64) -> (f64, f64) {
        let noise = self.noise / bytes;
        let all = self.spread + noise;
        let share = if all > 0.0 { self.spread / all } else { 1.0 };
        let density = self.mean + share * (rate / bytes - self.mean);
        (density * bytes, (share * noise).sqrt() * bytes)
    }
}

/// Blocks that sites share are no site's.
fn is_of_site(entry: &Entry) -> bool {
    entry.site != 0 && entry.footprint > 0 && !entry.is_nursery()
}

/// See the module. `live_bytes`: of a process's site.
pub(crate) fn shrink(entries: &mut [Entry], live_bytes: impl Fn(u32, u32) -> u64) {
    for tau in 0..2 {
        let mut sites: BTreeMap<(u32, u32), Sums> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| is_of_site(entry)) {
            let sums = sites.entry((entry.pid, entry.site)).or_default();
            sums.add(entry.footprint as f64, entry.rate[tau], entry.deviation[tau]);
        }
        let prior = |(&(pid, site), sums): (&(u32, u32), &Sums)| {
            Some(((pid, site), sums.prior(live_bytes(pid, site) as f64)?))
        };
        let priors: BTreeMap<(u32, u32), Prior> = sites.iter().filter_map(prior).collect();
        for entry in entries.iter_mut().filter(|entry| is_of_site(entry)) {
            if let Some(prior) = priors.get(&(entry.pid, entry.site)) {
                (entry.rate[tau], entry.deviation[tau]) =
                    prior.draw(entry.footprint as f64, entry.rate[tau]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 20;

    /// Extents that so many samples hit, each worth 100 ns a second.
    fn sampled(site: u32, counts: &[u32]) -> Vec<Entry> {
        let of = |count: &u32| {
            let rate = 100.0 * f64::from(*count);
            Entry::sampled(site, BYTES, rate, 100.0 * f64::from(*count).sqrt())
        };
        counts.iter().map(of).collect()
    }

    fn rates(entries: &[Entry]) -> Vec<f64> {
        entries.iter().map(|entry| entry.rate[0].round()).collect()
    }

    #[test]
    fn what_chance_explains_is_no_difference() {
        let mut entries = sampled(7, &[1, 1, 1, 2, 1, 1]);
        shrink(&mut entries, |_, _| 10 * BYTES);
        assert_eq!(rates(&entries), [70.0; 6], "7 samples on 10 extents, four of them unseen");
        assert!(entries.iter().all(|entry| entry.deviation[0] == 0.0));
    }

    #[test]
    fn one_sample_says_nothing_about_its_extent() {
        let mut entries = sampled(7, &[1]);
        shrink(&mut entries, |_, _| 100 * BYTES);
        assert_eq!(rates(&entries), [1.0]);
    }

    #[test]
    fn what_differs_by_more_stays_as_it_is() {
        let mut entries = sampled(7, &[100, 100, 1, 0]);
        shrink(&mut entries, |_, _| 4 * BYTES);
        let [hot, _, _, cold] = entries.as_slice() else { unreachable!() };
        assert!(hot.rate[0] > 9_500.0 && hot.rate[0] < 10_000.0, "{}", hot.rate[0]);
        assert!(cold.rate[0] < 200.0, "{}", cold.rate[0]);
        assert!(hot.deviation[0] > 0.0 && hot.deviation[0] < 1_000.0, "{}", hot.deviation[0]);
    }

    #[test]
    fn sites_are_drawn_apart_and_shared_blocks_not_at_all() {
        let mut entries = sampled(1, &[4, 5]);
        entries.extend(sampled(2, &[40, 50]));
        entries.extend(sampled(0, &[1, 3]));
        shrink(&mut entries, |_, _| 0);
        assert_eq!(rates(&entries), [450.0, 450.0, 4_500.0, 4_500.0, 100.0, 300.0]);
    }
}
