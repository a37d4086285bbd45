//! What is known after one more run.
//! In: [`Known`], [`RunFigures`]. Out: [`Known`]. Pure: the time comes in as an argument.
//!
//! Sums are merged by evidence: of what was known as much fades as a run brings, at most half, so
//! that hardly anything does when it brings few samples. So a program that is used in another way
//! is known anew after two or three runs, and a run that ended at once changes nothing. Moments of
//! two runs cannot be added: those of the last whole run are kept.

use std::collections::HashMap;

use crate::figures::{FRAMES_MAX, Known, RunFigures, SITES_MAX, SiteFigures, TEXT_BYTES_MAX};

/// What is left at least of what was known after a run. Chosen: of runs that bring as much each,
/// what is known is worth two.
const KEPT: f64 = 0.5;

/// A run is whole if it brings this part of the samples that are known: known is at most what two
/// runs bring, and one of half the length still shows what the program does.
const WHOLE_SHARE: f64 = 0.25;

/// Whole runs without a site after which it is forgotten. What it was known for has faded to 0.4%
/// of that then.
const UNSEEN_MAX: u32 = 8;

impl Known {
    /// Takes in a run that ended at this time, seconds since 1970. One without samples says nothing
    /// and changes nothing.
    pub fn absorb(&mut self, run: RunFigures, now_s: u64) {
        let (known, fresh) = (self.samples(), run.samples());
        if fresh <= 0.0 {
            return;
        }
        let kept = if known > 0.0 { (1.0 - fresh / known).max(KEPT) } else { KEPT };
        let is_whole = fresh >= known * WHOLE_SHARE;
        self.runs = self.runs.saturating_add(1);
        self.updated_s = now_s;
        if is_whole {
            (self.elapsed_s, self.peak_bytes) = (run.elapsed_s, run.peak_bytes);
        }
        self.peak_bytes = self.peak_bytes.max(run.peak_bytes);
        let mut fresh: HashMap<u64, SiteFigures> =
            run.sites.into_iter().map(|site| (site.hash, site.bounded())).collect();
        for site in &mut self.sites {
            site.fade(kept);
            match fresh.remove(&site.hash) {
                Some(fresh) => site.add(fresh, is_whole),
                None if is_whole => site.miss(),
                None => {}
            }
        }
        let new = fresh.into_values().map(|site| match is_whole {
            true => site,
            false => SiteFigures { live_bytes: Vec::new(), ..site },
        });
        self.sites.extend(new);
        self.bound();
    }

    /// Keeps the sites that matter most, in a fixed order.
    fn bound(&mut self) {
        self.sites.retain(|site| site.unseen_runs < UNSEEN_MAX);
        self.sites.sort_by(|a, b| {
            let by_value = b.value_ns.total_cmp(&a.value_ns);
            by_value.then(b.peak_bytes.cmp(&a.peak_bytes)).then(a.hash.cmp(&b.hash))
        });
        self.sites.truncate(SITES_MAX);
    }
}

impl SiteFigures {
    /// With texts as long as they may be: a symbol or a path can have any length.
    fn bounded(mut self) -> SiteFigures {
        self.frames.truncate(FRAMES_MAX);
        let frames = self.frames.iter_mut();
        let texts = frames.flat_map(|frame| [&mut frame.module, &mut frame.build_id]);
        for text in texts.chain([&mut self.name]) {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
        }
        self
    }

    fn fade(&mut self, kept: f64) {
        let sums = [
            &mut self.births,
            &mut self.born_bytes,
            &mut self.samples,
            &mut self.accesses,
            &mut self.value_ns,
            &mut self.live_byte_s,
        ];
        sums.into_iter().chain(&mut self.part_value_ns).for_each(|sum| *sum *= kept);
    }

    /// Adds what a run brought.
    fn add(&mut self, fresh: SiteFigures, is_whole: bool) {
        self.births += fresh.births;
        self.born_bytes += fresh.born_bytes;
        self.samples += fresh.samples;
        self.accesses += fresh.accesses;
        self.value_ns += fresh.value_ns;
        self.live_byte_s += fresh.live_byte_s;
        if self.part_value_ns.is_empty() {
            self.part_value_ns = fresh.part_value_ns;
        } else {
            let parts = self.part_value_ns.iter_mut().zip(fresh.part_value_ns);
            parts.for_each(|(sum, fresh)| *sum += fresh);
        }
        (self.kind, self.name, self.frames) = (fresh.kind, fresh.name, fresh.frames);
        self.unseen_runs = 0;
        if is_whole {
            (self.peak_bytes, self.live_bytes) = (fresh.peak_bytes, fresh.live_bytes);
        }
        self.peak_bytes = self.peak_bytes.max(fresh.peak_bytes);
    }

    /// A whole run did not have it: it takes no room, as far as is known.
    fn miss(&mut self) {
        self.unseen_runs += 1;
        self.live_bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Identity;

    fn site(hash: u64, samples: f64) -> SiteFigures {
        SiteFigures {
            hash,
            births: 2.0,
            born_bytes: 8192.0,
            samples,
            accesses: samples * 100.0,
            value_ns: samples * 1e4,
            live_byte_s: 8192.0,
            peak_bytes: 4096 * hash,
            live_bytes: vec![4096 * hash],
            ..SiteFigures::default()
        }
    }

    fn run(sites: &[(u64, f64)]) -> RunFigures {
        let sites = sites.iter().map(|(hash, samples)| site(*hash, *samples)).collect();
        RunFigures { elapsed_s: 1.0, peak_bytes: 1 << 20, sites }
    }

    fn known() -> Known {
        Known::new(Identity::of_build_id(&[7]).unwrap(), "/bin/app")
    }

    fn value(known: &Known, hash: u64) -> f64 {
        known.sites.iter().find(|site| site.hash == hash).map_or(0.0, |site| site.value_ns)
    }

    #[test]
    fn equal_runs_are_worth_two_of_them() {
        let mut known = known();
        (0..20).for_each(|at| known.absorb(run(&[(1, 100.0)]), at));
        assert!((known.samples() - 200.0).abs() < 1.0, "{}", known.samples());
        assert_eq!((known.runs, known.updated_s), (20, 19));
    }

    #[test]
    fn a_run_that_ended_at_once_changes_nothing_that_matters() {
        let mut known = known();
        known.absorb(run(&[(1, 1000.0), (2, 10.0)]), 1);
        let before = known.clone();
        known.absorb(run(&[]), 2);
        assert_eq!(known, before, "no samples");
        known.absorb(run(&[(2, 3.0), (3, 1.0)]), 3);
        assert!((value(&known, 1) / value(&before, 1) - 1.0).abs() < 0.01);
        assert_eq!(known.elapsed_s, before.elapsed_s);
        let first = known.sites.iter().find(|site| site.hash == 1).unwrap();
        assert_eq!(first.live_bytes, [4096], "it is not missed by a run that is not whole");
        let third = known.sites.iter().find(|site| site.hash == 3).unwrap();
        assert!(third.live_bytes.is_empty(), "its moments are those of another run");
    }

    #[test]
    fn another_use_of_the_program_is_known_after_few_runs() {
        let mut known = known();
        (0..5).for_each(|at| known.absorb(run(&[(1, 100.0), (2, 1.0)]), at));
        (5..8).for_each(|at| known.absorb(run(&[(1, 1.0), (2, 100.0)]), at));
        assert!(value(&known, 2) > 3.0 * value(&known, 1), "{known:?}");
        (8..8 + u64::from(UNSEEN_MAX)).for_each(|at| known.absorb(run(&[(2, 100.0)]), at));
        assert_eq!(known.sites.len(), 1, "a site that is not met any longer is forgotten");
    }

    #[test]
    fn a_site_that_a_whole_run_does_not_have_takes_no_room() {
        let mut known = known();
        known.absorb(run(&[(1, 50.0), (2, 50.0)]), 1);
        known.absorb(run(&[(1, 50.0)]), 2);
        let missed = known.sites.iter().find(|site| site.hash == 2).unwrap();
        assert_eq!((missed.unseen_runs, missed.live_bytes.len()), (1, 0));
    }

    #[test]
    fn sites_are_bounded_and_the_most_valuable_stay() {
        let mut known = known();
        let many: Vec<_> = (0..3 * SITES_MAX as u64).map(|hash| (hash, hash as f64)).collect();
        known.absorb(run(&many), 1);
        assert_eq!(known.sites.len(), SITES_MAX);
        assert_eq!(known.sites[0].hash, 3 * SITES_MAX as u64 - 1);
        known.check().unwrap();
    }
}
