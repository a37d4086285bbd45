//! Where the next spots go: by size, and by how much what is there adds to the uncertainty of all.
//! In: watched ranges, rates that spots showed. Out: positions, and the memory each stands for.
//! Knows nothing of page tables. Pure.
//!
//! A spot at x is drawn with the density q(x), n of them at even distances of the integral of q,
//! from a random start. With the rate r of accesses to the OS page at x, the estimate of all
//! accesses is
//!
//! ```text
//! A = sum over spots of r(x) / (n q(x))      sum of q over all OS pages = 1
//! ```
//! (Horvitz and Thompson). Its mean is the sum of the rates whatever q is, as long as q is above 0
//! and is chosen before the spots are looked at: it is unbiased. Its variance is
//!
//! ```text
//! (sum over OS pages of E r^2 / q - A^2) / n
//! ```
//! which is least where q is proportional to the root of E r^2, as Neyman's allocation has it: E
//! r^2 is what was seen there, its noise and its change in time included. Few spots say little of
//! it, so it is drawn towards that of all memory; and [`EVENLY`] of the spots go evenly over all
//! bytes, so that what is cold is looked at again, and no estimate weighs more than 1 / [`EVENLY`]
//! of an even one.
//!
//! At even distances each area gets within one of the spots that it is due, so that the variance is
//! below that of spots drawn one by one.

use fastrand::Rng;
use std::ops::Range;
use std::time::Duration;
use tiercel_machine::number::saturating_u64;

use super::rate::{self, Seen, Shown};
use super::windows::Window;

/// Share of the spots that goes evenly over all bytes. Chosen: with a quarter, cold memory has a
/// quarter of the spots that it would have, and hot memory up to three quarters of all.
const EVENLY: f64 = 0.25;
/// Ranges are cut into pieces of this part of all memory, each with a rate of its own.
const PIECES: u64 = 64;
/// But not smaller than this, and a multiple of it, because spots and OS pages are not cut: eight
/// spots.
const PIECE_BYTES: u64 = 256 << 10;
/// Spots that count: older ones fade. A phase of a second has some hundred spots in all.
const SEEN_MAX: f64 = 16.0;
/// The longest window that counts becomes the longest one that is not full when a spot is full in
/// it, and otherwise so much longer: 7% to 12% are full then, as with 1.3 accesses to each of 8 OS
/// pages. Their mean is 3% too low.
const LONGER: f64 = 1.2;
/// The longest window that ever counts, and the shortest: one look takes some microseconds.
const LONGEST: [f64; 2] = [100.0, 2e-6];
/// Windows of a spot: those of `rate`.
const WINDOWS_MAX: usize = 5;
/// Spots for which what is known of all memory counts in an area.
const PRIOR: f64 = 2.0;

/// What spots showed of the rates in an area: accesses per OS page and second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    seen: f64,
    mean: f64,
    square: f64,
    /// The longest window that counts, seconds; 0: the shortest one does.
    longest_s: f64,
}

/// A piece of a watched range.
#[derive(Debug)]
pub struct Area {
    /// Its addresses.
    pub range: Range<u64>,
    /// Index of its window.
    pub window: usize,
    /// Spots can be seen in it.
    is_open: bool,
    rates: Rates,
    /// OS pages times seconds for which spots stood that showed nothing.
    unseen: f64,
    /// Density of spots per byte, and the sum over all bytes up to its end.
    density: f64,
    to: f64,
}

/// All areas of a process, ascending.
#[derive(Debug, Default)]
pub struct Areas {
    areas: Vec<Area>,
    bytes: u64,
    all: Rates,
    /// How much of their time the windows of spots show, the longest first.
    shown: [Shown; WINDOWS_MAX],
}

/// A spot that is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Index of its area.
    pub area: usize,
    /// Address of some byte.
    pub at: u64,
    /// Bytes of memory that it stands for.
    pub stands_for: f64,
}

impl Rates {
    /// A spot showed this rate.
    fn add(&mut self, rate: f64) {
        self.seen += 1.0;
        let weight = 1.0 / self.seen.min(SEEN_MAX);
        self.mean += (rate - self.mean) * weight;
        self.square += (rate * rate - self.square) * weight;
    }

    /// The longest window in which a spot was not full.
    fn sharpen(&mut self, sharp: Option<Duration>) {
        let [most, least] = LONGEST;
        let longer_s = if self.longest_s > 0.0 { self.longest_s * LONGER } else { most };
        let sharp_s = sharp.map_or(most, |sharp| sharp.as_secs_f64());
        self.longest_s = sharp_s.min(longer_s).clamp(least, most);
    }

    /// The rate that the next spot is expected to show, if two showed theirs.
    pub fn expected(&self) -> Option<f64> {
        (self.seen >= 2.0).then_some(self.mean)
    }

    /// A standard deviation above what is expected.
    fn most(&self) -> Option<f64> {
        let variance =
            (self.square - self.mean * self.mean).max(0.0) / self.seen.clamp(1.0, SEEN_MAX);
        self.expected().map(|mean| mean + variance.sqrt())
    }

    /// Root of the mean square, drawn towards that of all.
    fn root(&self, all: &Rates) -> f64 {
        self.drawn(self.square, all.square).sqrt()
    }

    fn drawn(&self, own: f64, all: f64) -> f64 {
        let seen = self.seen.min(SEEN_MAX);
        (PRIOR * all + seen * own) / (PRIOR + seen)
    }
}

impl Area {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Areas {
    /// Replaces the areas by pieces of the windows' ranges. What is known of an address stays.
    pub fn watch<'a>(&mut self, windows: impl Iterator<Item = &'a Window> + Clone) {
        let ranges = windows
            .enumerate()
            .flat_map(|(at, window)| window.ranges.iter().map(move |range| (at, range.clone())));
        self.bytes = ranges.clone().map(|(_, range)| range.end - range.start).sum();
        let piece = (self.bytes / PIECES).next_multiple_of(PIECE_BYTES).max(PIECE_BYTES);
        let old = std::mem::take(&mut self.areas);
        for (window, range) in ranges {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start.saturating_add(piece));
                let known = old.partition_point(|area| area.range.end <= start);
                let known = old.get(known).filter(|area| area.range.start <= start);
                let known = known.map(|area| (area.rates, area.unseen));
                let (rates, unseen) = known.unwrap_or_default();
                let (range, is_open, density, to) = (start..end, true, 0.0, 0.0);
                self.areas.push(Area { range, window, is_open, rates, unseen, density, to });
                start = end;
            }
        }
    }

    /// States in which windows spots can be seen. In others there will be none.
    pub fn open(&mut self, is_open: impl Fn(usize) -> bool) {
        self.areas.iter_mut().for_each(|area| area.is_open = is_open(area.window));
    }

    /// One of them.
    pub fn get(&self, area: usize) -> &Area {
        &self.areas[area]
    }

    /// The longest window that shows the rate in an area; zero: nothing is known of it.
    pub fn longest(&self, area: usize) -> Duration {
        let own = self.areas.get(area).map_or(0.0, |area| area.rates.longest_s);
        Duration::from_secs_f64(own)
    }

    /// How many accesses a spot in an area stands for that had these windows, the longest first,
    /// and which of them showed it. `longest` is what [`Areas::longest`] was when the spot was
    /// armed, `page_seconds` the OS pages times seconds that it stands for.
    /// `None`: it showed nothing.
    pub fn judge(
        &mut self,
        (area, longest): (usize, Duration),
        windows: &[Seen],
        page_seconds: f64,
    ) -> Option<(f64, usize)> {
        let windows = self.corrected(windows);
        if let Some(area) = self.areas.get_mut(area) {
            area.rates.sharpen(rate::sharp(&windows));
        }
        let Some((rate, seen_in)) = rate::hazard(&windows, longest) else {
            self.missed(area, page_seconds);
            return None;
        };
        Some((rate * (page_seconds + self.saw(area, rate)), seen_in))
    }

    /// Windows that began together, the longest first, as long as the program ran in them.
    fn corrected(&mut self, windows: &[Seen]) -> Vec<Seen> {
        let mut longer: Option<Seen> = None;
        let shown = self.shown.iter_mut();
        let correct = |(window, shown): (&Seen, &mut Shown)| {
            if window.elapsed.is_zero() {
                return *window;
            }
            if let Some(longer) = &longer {
                shown.compare(window, longer);
            }
            *longer.insert(shown.corrected(window))
        };
        windows.iter().zip(shown).map(correct).collect()
    }

    /// A spot in an area showed a rate. What it stands for besides: that of spots there that showed
    /// nothing.
    fn saw(&mut self, area: usize, rate: f64) -> f64 {
        let Some(area) = self.areas.get_mut(area) else { return 0.0 };
        area.rates.add(rate);
        self.all.add(rate);
        std::mem::take(&mut area.unseen)
    }

    /// A spot showed nothing: the next one there stands for this as well, OS pages times seconds.
    fn missed(&mut self, area: usize, unseen: f64) {
        if let Some(area) = self.areas.get_mut(area) {
            area.unseen += unseen;
        }
    }

    /// An address anywhere, each as likely.
    pub fn any(&self, random: &mut Rng) -> Option<(usize, u64)> {
        let mut left = random.u64(..self.bytes.max(1));
        for (at, area) in self.areas.iter().enumerate() {
            let bytes = area.range.end - area.range.start;
            if left < bytes {
                return Some((at, area.range.start + left));
            }
            left -= bytes;
        }
        None
    }

    /// The most that spots say of the rate within a range, by bytes: a standard deviation above
    /// their mean; of areas without spots that of all, and where none can be seen none. What
    /// exceeds it was read: an estimate that is too low by chance is not taken for reads.
    pub fn rate_within(&self, range: &Range<u64>) -> f64 {
        let first = self.areas.partition_point(|area| area.range.end <= range.start);
        let (mut sum, mut bytes) = (0.0, 0.0);
        for area in self.areas[first..].iter().take_while(|area| area.range.start < range.end) {
            let overlap = area.range.end.min(range.end) - area.range.start.max(range.start);
            let rate = area.rates.most().unwrap_or(self.all.mean);
            sum += if area.is_open { overlap as f64 * rate } else { 0.0 };
            bytes += overlap as f64;
        }
        if bytes > 0.0 { sum / bytes } else { 0.0 }
    }

    /// `count` places, ascending; if they are enough for all memory, one in each `spot_bytes`.
    pub fn places(&mut self, count: usize, spot_bytes: u64, random: &mut Rng) -> Vec<Place> {
        let open = self.areas.iter().filter(|area| area.is_open).map(Area::bytes).sum::<u64>();
        let is_all = (count as u64).saturating_mul(spot_bytes) >= open;
        let count = if is_all { open.div_ceil(spot_bytes) } else { count as u64 };
        let sum = self.weigh(is_all);
        if sum <= 0.0 || count == 0 {
            return Vec::new();
        }
        let stride = sum / count as f64;
        let start = random.f64();
        let (mut out, mut area) = (Vec::new(), 0);
        for nth in 0..count {
            let position = (nth as f64 + start) * stride;
            while area + 1 < self.areas.len() && self.areas[area].to <= position {
                area += 1;
            }
            let Area { range, density, to, .. } = &self.areas[area];
            if *density <= 0.0 {
                continue; // Rounding led beyond the last area.
            }
            let back = saturating_u64((to - position).max(0.0) / density);
            let at = range.end.saturating_sub(back).clamp(range.start, range.end - 1);
            out.push(Place { area, at, stands_for: stride / density });
        }
        out
    }

    /// Sets the densities; their integral.
    fn weigh(&mut self, is_even: bool) -> f64 {
        let (all, mut to) = (self.all, 0.0);
        let (mut roots, mut bytes) = (0.0, 0.0);
        for area in self.areas.iter().filter(|area| area.is_open) {
            roots += area.rates.root(&all) * area.bytes() as f64;
            bytes += area.bytes() as f64;
        }
        let mean = if bytes > 0.0 { roots / bytes } else { 0.0 };
        for area in &mut self.areas {
            let part = if mean > 0.0 { area.rates.root(&all) / mean } else { 1.0 };
            let density = if is_even { 1.0 } else { EVENLY + (1.0 - EVENLY) * part };
            area.density = if area.is_open { density } else { 0.0 };
            to += area.density * area.bytes() as f64;
            area.to = to;
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const OS_PAGE: u64 = 4096;
    const SPOT: u64 = 8 * OS_PAGE;

    fn unit(random: &mut Rng) -> f64 {
        1.0 - random.f64()
    }

    /// Page tables of arrays of 8 MiB, each accessed at random by a thread of its own at these
    /// rates per OS page and second while it runs; each runs half of the time, in slices.
    struct Model {
        rates: Vec<f64>,
        random: Rng,
    }

    impl Model {
        /// What a spot shows within 50 ms, 2 ms, 0.1 ms and 20 us.
        fn look(&mut self, array: usize, runs: bool) -> [Seen; 4] {
            let lengths = [50_000, 2_000, 100, 20].map(Duration::from_micros);
            // Over 50 ms it runs half of the time whether it runs now or not.
            let rate = self.rates[array];
            let now = if runs { rate } else { 0.0 };
            let first: [f64; 8] = std::array::from_fn(|_| {
                let at = -unit(&mut self.random).ln();
                if at < now * 0.002 { at / now } else { 0.002 + (at - now * 0.002) / (rate / 2.0) }
            });
            lengths.map(|elapsed| {
                let used = first.iter().filter(|at| **at < elapsed.as_secs_f64()).count();
                // In CPU time, as far as short windows show it.
                let elapsed = elapsed / 2;
                Seen { used: used as u64, total: 8, elapsed }
            })
        }

        /// Shares that `rounds` rounds of `count` spots show, at even densities or not.
        fn shares(&mut self, rounds: usize, count: usize, is_even: bool) -> Vec<f64> {
            let arrays = self.rates.len() as u64;
            let all = 0..arrays * 8 * MIB;
            let window = Window { span: all.clone(), ranges: vec![all] };
            let mut areas = Areas::default();
            areas.watch(std::iter::once(&window));
            let mut sums = vec![0.0; self.rates.len()];
            for _ in 0..rounds {
                let runs: Vec<bool> = (0..arrays).map(|_| self.random.u64(..2) == 0).collect();
                let places = areas.places(count, SPOT, &mut self.random);
                for place in places {
                    let array = (place.at / (8 * MIB)) as usize;
                    let seen = self.look(array, runs[array]);
                    let longest = areas.longest(place.area);
                    let rate = rate::hazard(&seen, longest).map_or(0.0, |found| found.0);
                    sums[array] += rate * place.stands_for;
                    areas.judge((place.area, longest), &seen, 1.0);
                    if is_even {
                        // No rate is kept.
                        areas.areas[place.area].rates.square = 1.0;
                        areas.all.square = 1.0;
                    }
                }
            }
            let all: f64 = sums.iter().sum();
            sums.into_iter().map(|sum| sum / all).collect()
        }
    }

    /// Mean and mean square error of the first array's share over seeds.
    fn first_share(rates: &[f64], rounds: usize, is_even: bool) -> (f64, f64) {
        const SEEDS: u64 = 60;
        let truth = rates[0] / rates.iter().sum::<f64>();
        let (mut sum, mut squares) = (0.0, 0.0);
        for seed in 1..=SEEDS {
            let mut model = Model { rates: rates.to_vec(), random: Rng::with_seed(seed) };
            let share = model.shares(rounds, 6, is_even)[0];
            sum += share;
            squares += (share - truth).powi(2);
        }
        (sum / SEEDS as f64, squares / SEEDS as f64)
    }

    #[test]
    fn shares_of_four_threads_converge() {
        let rates = [5300.0, 2700.0, 1300.0, 700.0];
        let (mean, square) = first_share(&rates, 100, false);
        assert!((mean - 0.53).abs() < 0.03, "mean {mean}");
        assert!(square.sqrt() < 0.08, "error {}", square.sqrt());
        let (_, later) = first_share(&rates, 400, false);
        assert!(later < square / 2.0, "{later} after four times as long, {square} before");
    }

    #[test]
    fn spots_where_it_is_hot_say_more_than_even_ones() {
        // One array of sixteen has most accesses.
        let mut rates = vec![30.0; 16];
        rates[3] = 3000.0;
        rates.swap(0, 3);
        let (mean, uneven) = first_share(&rates, 100, false);
        let (_, even) = first_share(&rates, 100, true);
        assert!((mean - 3000.0 / 3450.0).abs() < 0.03, "mean {mean}");
        assert!(uneven < even * 0.7, "{uneven} against {even}");
    }

    #[test]
    fn places_stand_for_all_memory_whatever_is_known() {
        let mut areas = Areas::default();
        let window = Window {
            span: 0..40 * MIB,
            ranges: vec![0..MIB, 2 * MIB..34 * MIB, 39 * MIB..40 * MIB],
        };
        areas.watch(std::iter::once(&window));
        assert_eq!(areas.bytes, 34 * MIB);
        let mut random = Rng::with_seed(5);
        let mut sums = [0.0; 3];
        const TURNS: u64 = 2000;
        for turn in 0..TURNS {
            areas.saw(3, 1000.0);
            areas.saw((turn % 34) as usize, 1.0);
            for place in areas.places(10, SPOT, &mut random) {
                let range = window.ranges.iter().position(|range| range.contains(&place.at));
                sums[range.expect("watched")] += place.stands_for;
            }
        }
        for (sum, range) in sums.into_iter().zip(&window.ranges) {
            let mean = sum / TURNS as f64 / (range.end - range.start) as f64;
            assert!((mean - 1.0).abs() < 0.1, "{mean} of {range:?}");
        }
        let all = areas.places(1 << 20, SPOT, &mut random);
        assert_eq!(all.len() as u64, 34 * MIB / SPOT);
        assert!(all.iter().all(|place| place.stands_for == SPOT as f64));
        assert!(Areas::default().places(5, SPOT, &mut random).is_empty());
    }

    #[test]
    fn areas_and_spots_begin_at_os_pages_whatever_is_watched() {
        let mut areas = Areas::default();
        let odd = OS_PAGE..40 * MIB - 3 * OS_PAGE;
        areas.watch(std::iter::once(&Window { span: odd.clone(), ranges: Vec::from([odd]) }));
        assert!(areas.areas.len() > 1);
        for area in &areas.areas {
            assert_eq!((area.range.start % OS_PAGE, area.range.end % OS_PAGE), (0, 0));
        }
    }

    #[test]
    fn what_cannot_be_seen_gets_no_spots_and_hides_nothing() {
        let mut areas = Areas::default();
        let window = |from: u64| Window {
            span: from * MIB..(from + 4) * MIB,
            ranges: Vec::from([Range { start: from * MIB, end: (from + 4) * MIB }]),
        };
        areas.watch([window(0), window(8), window(16)].iter());
        areas.open(|window| window == 1);
        let mut random = Rng::with_seed(2);
        for count in [10, 1 << 20] {
            let places = areas.places(count, SPOT, &mut random);
            assert_eq!(places.len() as u64, (count as u64).min(4 * MIB / SPOT));
            assert!(places.iter().all(|place| (8 * MIB..12 * MIB).contains(&place.at)));
        }
        areas.saw(20, 7.0);
        areas.saw(20, 7.0);
        assert_eq!(areas.rate_within(&(0..4 * MIB)), 0.0, "reads there are not written ones");
        let area = areas.get(20).range.clone();
        assert_eq!(areas.rate_within(&area), 7.0);
        areas.open(|_| false);
        assert!(areas.places(10, SPOT, &mut random).is_empty());
    }

    #[test]
    fn what_is_known_of_an_address_stays_known() {
        let mut areas = Areas::default();
        let window = |range: Range<u64>| Window { span: range.clone(), ranges: vec![range] };
        areas.watch(std::iter::once(&window(0..MIB)));
        assert_eq!(areas.saw(1, 7.0), 0.0);
        areas.missed(1, 3.0);
        assert_eq!(areas.saw(1, 7.0), 3.0, "what was missed counts once");
        areas.watch([window(MIB / 4..MIB / 2), window(8 * MIB..9 * MIB)].iter());
        assert_eq!(areas.get(0).rates.expected(), Some(7.0));
        assert_eq!(areas.get(1).rates.expected(), None);
        assert!(areas.rate_within(&(MIB / 4..MIB / 2)) == 7.0);
    }
}
