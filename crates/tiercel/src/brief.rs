//! The summary in three lines: what is hot, how much fast memory is enough, what to do next.
//! In: a [`FinalReport`], what the machine's memories differ by. Out: lines. Knows nothing of where
//! they go, or of how shares are estimated.
//!
//! What is enough follows from shares of accesses and from one ratio. Where the slow memory takes r
//! times as long as the fast one and serves a share s of the accesses, a program that does nothing
//! but wait for memory takes 1 + s (r - 1) as long; any other less. So with s below 5% / (r - 1)
//! it is at most 5% slower, whatever else it does.

use crate::figures::plural;
use crate::show::ranked;
use std::fmt::Write;
use tiercel_daemon::{FinalReport, SiteRow, Summary};
use tiercel_ledger::confidence::Ranking;
use tiercel_machine::{Machine, Tier, short_bytes};
use tiercel_symbolize::Symbols;

/// The slowdown that counts as enough: 5%, as the summary says.
const SLOWDOWN: f64 = 0.05;

/// Sites of the first line.
const HOT_MAX: usize = 3;

/// The least share of the accesses that makes a site worth naming after the first.
const HOT_SHARE: f64 = 0.05;

/// What the three lines need besides the report.
pub struct Around<'a> {
    /// How many times as long as the fastest memory the slowest takes; `None`: unknown.
    pub ratio: Option<f64>,
    /// Why something did not work as requested.
    pub remarks: &'a [String],
    /// The command line of the program.
    pub program: String,
    /// It ran by a plan.
    pub has_plan: bool,
}

/// The three lines.
pub fn brief(report: &FinalReport, around: &Around<'_>, symbols: &mut Symbols) -> String {
    let summary = &report.summary;
    if summary.clients.attached == 0 {
        return unattached(summary, around);
    }
    let (places, ranking) = ranked(report, symbols);
    let mut out = hot(summary, &places, &ranking);
    out.push_str(&enough_line(summary, &places, &ranking, around.ratio));
    let _ =
        writeln!(out, "next       {}{}", next(summary, &ranking, around), hidden(summary, around));
    out
}

fn unattached(summary: &Summary, around: &Around<'_>) -> String {
    let failure = summary.clients.failure.as_deref();
    let why = around.remarks.first().map(String::as_str).or(failure);
    let why = why.unwrap_or("no process of it allocated enough to be worth tracking");
    format!(
        "hot        unknown, because no process attached: {why}\n\
         enough     unknown\n\
         next       tiercel doctor\n"
    )
}

fn hot(summary: &Summary, places: &[(String, SiteRow)], ranking: &Ranking) -> String {
    let seconds = summary.elapsed_ms as f64 / 1e3;
    let Ranking { samples, samples_wanted, .. } = ranking;
    if *samples == 0 {
        return "hot        unknown: no access was sampled\n".to_owned();
    }
    if samples < samples_wanted {
        return format!(
            "hot        unknown: {samples} samples in {seconds:.1} s are too few \
             ({samples_wanted} wanted)\n"
        );
    }
    let named = places.iter().take(HOT_MAX).enumerate();
    let named = named.filter(|(at, (_, row))| *at == 0 || row.used.share.of >= HOT_SHARE);
    let named: Vec<String> = named.map(|(_, place)| hot_site(place)).collect();
    let doubt = if ranking.settled { "" } else { " (as far as known)" };
    format!("hot        {}{doubt}\n", named.join("; "))
}

/// `app: make_hot a.c:5, 32MiB with 91% (88-94) of accesses`.
fn hot_site((name, row): &(String, SiteRow)) -> String {
    let share = &row.used.share;
    format!(
        "{name}, {} with {:.0}% ({:.0}-{:.0}) of accesses",
        short_bytes(row.used.peak_bytes),
        share.of * 100.0,
        share.low * 100.0,
        share.high * 100.0
    )
}

fn enough_line(
    summary: &Summary,
    places: &[(String, SiteRow)],
    ranking: &Ranking,
    ratio: Option<f64>,
) -> String {
    let peak_bytes = summary.objects.peak_bytes;
    if !ranking.settled {
        let why = if ranking.samples == 0 { "no access was sampled" } else { "run longer" };
        return format!("enough     unknown: {why} (peak {})\n", short_bytes(peak_bytes));
    }
    let share = slow_share(ratio);
    let bytes = enough(places, share).unwrap_or(peak_bytes).min(peak_bytes);
    let what = match ratio {
        Some(_) => "at most 5% slower than with all of it fast".to_owned(),
        None => format!("it has at least {:.0}% of the accesses", (1.0 - share) * 100.0),
    };
    let (bytes, peak) = (short_bytes(bytes), short_bytes(peak_bytes));
    format!("enough     {bytes} of fast memory, of a peak of {peak}: {what}\n")
}

/// The share of accesses that slow memory may serve.
fn slow_share(ratio: Option<f64>) -> f64 {
    match ratio {
        Some(ratio) if ratio > 1.0 => (SLOWDOWN / (ratio - 1.0)).min(1.0),
        Some(_) => 1.0,
        // Nothing is known of the memories.
        None => SLOWDOWN,
    }
}

/// Bytes of the densest sites that surely have all accesses but this share; `None`: no set of known
/// sites surely has.
fn enough(places: &[(String, SiteRow)], slow_share: f64) -> Option<u64> {
    let (mut bytes, mut served) = (0, 0.0);
    for (_, row) in places {
        if served >= 1.0 - slow_share {
            return Some(bytes);
        }
        bytes += row.used.peak_bytes;
        served += row.used.share.low;
    }
    (served >= 1.0 - slow_share).then_some(bytes)
}

/// What to do now.
fn next(summary: &Summary, ranking: &Ranking, around: &Around<'_>) -> String {
    let program = &around.program;
    match () {
        () if ranking.samples == 0 => "tiercel doctor".to_owned(),
        () if !ranking.settled => format!("run longer, or: tiercel record -- {program}"),
        () if summary.modelled => {
            format!("tiercel lab compare --machine {} -- {program}", summary.machine)
        }
        () if around.has_plan => format!("tiercel run --plan FILE --adapt -- {program}"),
        () => format!("tiercel record -- {program}; tiercel plan PROFILE"),
    }
}

/// What only -v shows.
fn hidden(summary: &Summary, around: &Around<'_>) -> String {
    let mut parts = Vec::new();
    if summary.modelled {
        parts.push("no memory was moved: this run is modelled".to_owned());
    }
    let (problems, remarks) = (summary.problems.len() as u64, around.remarks.len() as u64);
    if problems > 0 {
        parts.push(plural(problems, "problem", "problems"));
    }
    if remarks > 0 {
        parts.push(plural(remarks, "remark", "remarks"));
    }
    parts.push("-v shows all".to_owned());
    format!("   ({})", parts.join("; "))
}

/// How many times as long as the fastest memory of a machine the slowest takes, by the figure in
/// which they differ most.
pub fn cost_ratio(machine: &Machine) -> Option<f64> {
    let tiers = machine.tiers();
    let figures = |tier: &Tier| Some(machine.node(*tier.nodes.first()?)?.figures);
    let (fast, slow) = (figures(tiers.first()?)?, figures(tiers.last()?)?);
    let over = |more: Option<f64>, less: Option<f64>| Some(more? / less.filter(|one| *one > 0.0)?);
    let ratios = [
        over(slow.read_latency_ns, fast.read_latency_ns),
        over(slow.write_latency_ns, fast.write_latency_ns),
        over(fast.read_gb_s, slow.read_gb_s),
        over(fast.write_gb_s, slow.write_gb_s),
    ];
    ratios.into_iter().flatten().reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_daemon::Use;
    use tiercel_ledger::confidence::Estimate;
    use tiercel_symbolize::Reader;

    fn place(name: &str, mib: u64, percent: f64) -> (String, SiteRow) {
        let of = percent / 100.0;
        let share = Estimate { of, low: of - 0.01, high: of + 0.01 };
        let used = Use { peak_bytes: mib << 20, share, ..Use::default() };
        (name.to_owned(), SiteRow { used, ..SiteRow::default() })
    }

    fn around(remarks: &[String], ratio: Option<f64>) -> Around<'_> {
        Around { ratio, remarks, program: "./app".to_owned(), has_plan: false }
    }

    #[test]
    fn what_is_enough_leaves_a_twentieth_at_most() {
        let places = [place("hot", 32, 90.0), place("warm", 16, 8.0), place("cold", 128, 1.0)];
        // Twice as slow: 5% of the accesses may be in it.
        assert_eq!(enough(&places, slow_share(Some(2.0))), Some(48 << 20));
        // A third slower: 15% may.
        assert_eq!(enough(&places, slow_share(Some(4.0 / 3.0))), Some(32 << 20));
        // Ten times: half a percent, and that much is uncertain.
        assert_eq!(enough(&places, slow_share(Some(10.0))), None);
        assert_eq!(enough(&places, slow_share(Some(1.0))), Some(0), "all memory is alike");
        let machine = Machine::builtin("spr-cxl").unwrap().unwrap();
        // 248 and 51.9 GB/s; by latency it is 1.9.
        assert!((cost_ratio(&machine).unwrap() - 248.0 / 51.9).abs() < 1e-9);
    }

    fn report(samples: u64) -> FinalReport {
        let mut report = FinalReport::default();
        report.summary.clients.attached = 1;
        report.summary.elapsed_ms = 4_900;
        report.summary.objects.peak_bytes = 172 << 20;
        report.summary.evidence.samples = samples;
        report
    }

    fn said(report: &FinalReport, around: &Around<'_>) -> String {
        brief(report, around, &mut Symbols::new(&Reader::InProcess))
    }

    #[test]
    fn three_lines_whatever_is_known() {
        let few = said(&report(18), &around(&[], Some(2.0)));
        assert!(
            few.starts_with("hot        unknown: 18 samples in 4.9 s are too few (200 wanted)\n")
        );
        assert!(few.contains("enough     unknown: run longer (peak 172MiB)"), "{few}");
        assert!(few.contains("next       run longer, or: tiercel record -- ./app"), "{few}");
        let mut none = report(0);
        none.summary.problems.insert("x".to_owned(), 3);
        none.summary.modelled = true;
        let none = said(&none, &around(&["why".to_owned()], None));
        assert!(none.contains("next       tiercel doctor   (no memory was moved"), "{none}");
        assert!(none.contains("1 problem; 1 remark; -v shows all"), "{none}");
        let unattached = said(&FinalReport::default(), &around(&["it is static".to_owned()], None));
        assert!(unattached.starts_with("hot        unknown, because no process attached: it is"));
        for text in [few, none, unattached] {
            assert_eq!(text.lines().count(), 3, "{text}");
        }
    }

    #[test]
    fn hot_sites_come_with_size_and_interval() {
        let mut ranking = Ranking { samples: 900, samples_wanted: 200, ..Ranking::default() };
        ranking.settled = true;
        let places = [place("app: hot a.c:5", 32, 91.0), place("b", 16, 8.0), place("c", 1, 1.0)];
        let line = hot(&Summary::default(), &places, &ranking);
        let expect =
            "hot        app: hot a.c:5, 32MiB with 91% (90-92) of accesses; b, 16MiB with 8%";
        assert!(line.starts_with(expect) && !line.contains("; c"), "{line}");
        let mut summary = Summary::default();
        summary.objects.peak_bytes = 172 << 20;
        let line = enough_line(&summary, &places, &ranking, Some(2.0));
        let expect = "enough     48MiB of fast memory, of a peak of 172MiB: at most 5% slower than";
        assert!(line.starts_with(expect), "{line}");
    }
}
