//! `tiercel wss`: the working set of a recorded program over time.
//! In: [`WssArgs`], a profile. Out: percentiles as a table, or all windows as JSON. Knows nothing
//! of how a working set is found.

use crate::figures::plural;
use crate::table::{Align, Table};
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;
use tiercel_advisor::{WorkingSet, working_sets};
use tiercel_ledger::confidence::SAMPLES_WANTED;
use tiercel_machine::number::{saturating_u64, whole_ns};
use tiercel_machine::{TimeSpan, short_bytes};

/// Percentiles of the table: the extremes, the quartiles, and the ends of 90%.
const PERCENTILES: [u32; 7] = [0, 5, 25, 50, 75, 95, 100];

/// `tiercel wss`.
#[derive(ClapArgs, Debug)]
pub struct WssArgs {
    /// The profile: what `tiercel record` wrote
    #[arg(value_name = "PROFILE")]
    profile: PathBuf,
    /// Length of a window: what is accessed in it is its working set
    #[arg(long, value_name = "TIME", default_value = "1s")]
    window: TimeSpan,
    /// Print all windows as JSON
    #[arg(long)]
    json: bool,
}

/// Everything that is printed.
#[derive(Serialize)]
struct Report {
    /// Windows, in order.
    windows: Vec<Window>,
}

#[derive(Serialize)]
struct Window {
    start_s: f64,
    used_bytes: u64,
    live_bytes: u64,
    samples: u64,
}

/// `tiercel wss`.
pub fn wss(args: &WssArgs) -> Result<()> {
    let profile = tiercel_profile::read(&args.profile)?;
    let sets = working_sets(&profile, whole_ns(args.window.0));
    if args.json {
        return say_json("wss", &Report { windows: sets.iter().map(window).collect() });
    }
    if sets.iter().all(|one| one.samples == 0) {
        bail!("no access was sampled, so no working set is known; record with another --sampler");
    }
    say(&text(&sets, &args.window))
}

fn window(one: &WorkingSet) -> Window {
    let WorkingSet { start_ns, used_bytes, live_bytes, samples } = *one;
    Window { start_s: start_ns as f64 / 1e9, used_bytes, live_bytes, samples }
}

fn text(sets: &[WorkingSet], window: &TimeSpan) -> String {
    use Align::Right;
    let mut table = Table::new(&[("percentile", Right), ("working set", Right), ("live", Right)]);
    let sorted = |of: fn(&WorkingSet) -> u64| {
        let mut all: Vec<u64> = sets.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    let (used, live) = (sorted(|one| one.used_bytes), sorted(|one| one.live_bytes));
    for percent in PERCENTILES {
        let cells = [&used, &live].map(|all| short_bytes(percentile(all, percent)));
        table.row(std::iter::once(percent.to_string()).chain(cells).collect());
    }
    let samples: u64 = sets.iter().map(|one| one.samples).sum();
    let few = match samples < SAMPLES_WANTED {
        true => format!(
            "{samples} samples are too few ({SAMPLES_WANTED} wanted): the working set may be far larger\n"
        ),
        false => String::new(),
    };
    format!(
        "{}{few}{} of {window}; working set: extents that a sample hit in a window, so at least \
         what is listed is used; live: objects that lived in it\n",
        table.text(),
        plural(sets.len() as u64, "window", "windows"),
    )
}

/// The nearest rank: the least value that this percentage of all values does not exceed.
fn percentile(sorted: &[u64], percent: u32) -> u64 {
    let rank = (sorted.len() as f64 * f64::from(percent) / 100.0).ceil();
    let at = usize::try_from(saturating_u64(rank)).unwrap_or(usize::MAX).saturating_sub(1);
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let all = [10, 20, 30, 40];
        let found = [0, 25, 50, 51, 75, 95, 100].map(|percent| percentile(&all, percent));
        assert_eq!(found, [10, 10, 20, 30, 30, 40, 40]);
        assert_eq!(percentile(&[], 50), 0);
    }

    #[test]
    fn a_working_set_of_few_samples_says_so() {
        let of = |samples| {
            let one = WorkingSet { used_bytes: 1 << 20, samples, ..WorkingSet::default() };
            text(&[one], &TimeSpan(std::time::Duration::from_secs(1)))
        };
        let few = of(13);
        assert!(few.contains("13 samples are too few (200 wanted)"), "{few}");
        assert!(few.contains("1 window of 1s"), "{few}");
        assert!(!of(200).contains("too few"));
    }
}
