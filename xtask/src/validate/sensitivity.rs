//! Whether the ranking of placements depends on constants of the model. In: what `sensitivity`, an
//! example of memsim, prints. Out: a page with Kendall's tau and every pair that changes places.
//! Knows nothing of the constants but their names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use tiercel_report::{Align, Table};

use super::MACHINES;
use crate::exec;

/// Two placements closer than this are tied: their order is ignored.
const TIE: f64 = 0.02;

#[derive(Deserialize)]
struct Line {
    machine: String,
    workload: String,
    constant: String,
    change: f64,
    ns: BTreeMap<String, f64>,
}

/// Two placements whose order is another one than with unchanged constants.
struct Swap {
    faster: String,
    slower: String,
    /// How much slower the second one was, and is now.
    before: f64,
    after: f64,
}

pub fn main(folder: &Path) -> Result<()> {
    let which = ["--quiet", "--release", "--package", "tiercel-memsim", "--example", "sensitivity"];
    exec::run(exec::cargo().arg("build").args(which))?;
    let program = exec::target().join("release/examples/sensitivity");
    let mut lines = Vec::new();
    for machine in MACHINES {
        eprintln!("{machine}: each constant a quarter less and more");
        let text = exec::output(exec::command(&program.display().to_string()).arg(machine))?;
        for line in text.lines() {
            let parsed: Line = serde_json::from_str(line).with_context(|| line.to_owned())?;
            lines.push(parsed);
        }
    }
    let page = page(&lines)?;
    std::fs::create_dir_all(folder)?;
    let path = folder.join("sensitivity.md");
    std::fs::write(&path, &page).with_context(|| path.display().to_string())?;
    print!("{page}");
    Ok(())
}

fn page(lines: &[Line]) -> Result<String> {
    let columns = [
        ("machine", Align::Left),
        ("workload", Align::Left),
        ("placements, fastest first, ns an access", Align::Left),
        ("runs", Align::Right),
        ("least tau", Align::Right),
        ("pairs that swap", Align::Right),
    ];
    let mut table = Table::new(columns.map(|(name, align)| (name.to_owned(), align)).to_vec());
    let mut swaps = String::new();
    let mut taus = Vec::new();
    for base in lines.iter().filter(|line| line.constant == "nothing") {
        let here = |line: &&Line| {
            (&line.machine, &line.workload) == (&base.machine, &base.workload)
                && line.constant != "nothing"
        };
        let (mut least, mut swapped, mut runs) = (1.0f64, 0, 0);
        for line in lines.iter().filter(here) {
            let tau = tau(&base.ns, &line.ns);
            taus.push(tau);
            (least, runs) = (least.min(tau), runs + 1);
            for Swap { faster, slower, before, after } in find(&base.ns, &line.ns) {
                swapped += 1;
                writeln!(
                    swaps,
                    "- {}, {}: {} {:+.0}%: {slower} was {:.1}% slower than {faster}, is {:.1}% \
                     faster",
                    base.machine,
                    base.workload,
                    line.constant,
                    (line.change - 1.0) * 100.0,
                    before * 100.0,
                    after * 100.0,
                )?;
            }
        }
        table.row(vec![
            base.machine.clone(),
            base.workload.clone(),
            order(&base.ns),
            runs.to_string(),
            format!("{least:.2}"),
            swapped.to_string(),
        ]);
    }
    let whole = taus.iter().filter(|tau| **tau >= 1.0).count();
    let mut page = format!(
        "# Does the ranking of placements hold when a constant is wrong by a quarter?\n\n\
         Written by `./x lab validate --sensitivity`: each constant of the machine and of the\n\
         model, one at a time, 25% less and more; one core with its share; replay, no guest.\n\
         Kendall's tau compares the order of all pairs of placements with the unchanged model's;\n\
         pairs within {:.0}% of each other, then or now, are ties and count as unchanged.\n\n\
         In {whole} of {} runs no pair changed places.\n\n",
        TIE * 100.0,
        taus.len()
    );
    page += &table.markdown();
    page += "\n## Pairs that swap\n\n";
    page += if swaps.is_empty() { "None.\n" } else { &swaps };
    Ok(page)
}

fn order(ns: &BTreeMap<String, f64>) -> String {
    let mut all: Vec<(&String, f64)> = ns.iter().map(|(name, ns)| (name, *ns)).collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    let words: Vec<String> = all.iter().map(|(name, ns)| format!("{name} {ns:.2}")).collect();
    words.join(", ")
}

/// Pairs in the other order, both times by more than a tie.
fn find(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Vec<Swap> {
    let mut swaps = Vec::new();
    for (faster, a) in before {
        for (slower, b) in before {
            let (Some(now_a), Some(now_b)) = (after.get(faster), after.get(slower)) else {
                continue;
            };
            let (gap, now) = (b / a - 1.0, now_a / now_b - 1.0);
            if gap > TIE && now > TIE {
                let (faster, slower) = (faster.clone(), slower.clone());
                swaps.push(Swap { faster, slower, before: gap, after: now });
            }
        }
    }
    swaps
}

/// Kendall's tau over all pairs: 1 for the same order, -1 for the opposite.
fn tau(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> f64 {
    let count = before.len() as f64;
    1.0 - 4.0 * find(before, after).len() as f64 / (count * (count - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(values: [f64; 3]) -> BTreeMap<String, f64> {
        ["a", "b", "c"].into_iter().map(str::to_owned).zip(values).collect()
    }

    #[test]
    fn tau_counts_swapped_pairs_and_ignores_ties() {
        let base = times([1.0, 2.0, 3.0]);
        assert_eq!(tau(&base, &base), 1.0);
        assert_eq!(tau(&base, &times([3.0, 2.0, 1.0])), -1.0);
        assert!((tau(&base, &times([2.0, 1.0, 3.0])) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(tau(&base, &times([2.01, 2.0, 3.0])), 1.0, "a tie now");
        let swaps = find(&base, &times([2.0, 1.0, 3.0]));
        assert_eq!((swaps[0].faster.as_str(), swaps[0].slower.as_str()), ("a", "b"));
        assert_eq!((swaps[0].before, swaps[0].after), (1.0, 1.0));
    }

    #[test]
    fn the_page_names_what_swaps() {
        let line = |constant: &str, change, values| Line {
            machine: "m".to_owned(),
            workload: "w".to_owned(),
            constant: constant.to_owned(),
            change,
            ns: times(values),
        };
        let lines = [
            line("nothing", 1.0, [1.0, 2.0, 3.0]),
            line("window", 0.75, [1.0, 2.0, 3.0]),
            line("window", 1.25, [2.0, 1.0, 3.0]),
        ];
        let page = page(&lines).expect("written");
        assert!(page.contains("In 1 of 2 runs"), "{page}");
        assert!(
            page.contains("window +25%: b was 100.0% slower than a, is 100.0% faster"),
            "{page}"
        );
    }
}
