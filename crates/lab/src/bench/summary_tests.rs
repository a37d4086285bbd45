//! Tests of the summary, on results made by hand.
//! In: times. Out: tables. Knows nothing of guests.

use super::*;
use crate::bench::bound::Best;
use crate::bench::run_result::{Moved, Resident, Waits};
use expect_test::expect;

fn result(workload: &str, half: Half, policy: &str, percent: Option<&str>, ms: u64) -> RunResult {
    let share = percent.map(|text| Share::try_from(text.to_owned()).expect("a share"));
    let ours = policy == "lru";
    let summary = serde_json::json!({
        "elapsed_ms": 2000,
        "spent": { "cpu_ns": 1_000_000, "theirs_ns": 0 },
        "objects": { "born": 64, "born_bytes": 8_000_000, "ephemeral": 1, "peak_bytes": 4 << 20 },
        "samples": { "seen": 100, "attributed": 90 },
        "moves": {
            "asked": 7,
            "took_ns": 4_000_000,
            "own_bytes": 1 << 20,
            "moved_bytes": { "promote": 2 << 20, "demote": 1 << 20 },
        },
    });
    RunResult {
        key: format!("{workload} {policy} {percent:?}"),
        cell: Cell {
            machine: "m".to_owned(),
            workload: workload.to_owned(),
            half,
            policy: policy.to_owned(),
            share,
            repeat: 0,
        },
        timed: true,
        vcpus: 1,
        fast_bytes: percent.map(|_| 2 << 20),
        measured: Measured {
            time_ns: ms * 1_000_000,
            wall_ns: 100_000_000,
            peak_bytes: 8 << 20,
            resident: Resident { observations: 4, fast_share: 0.5, ..Resident::default() },
            moved: Moved { migrated_bytes: 2 << 20, ..Moved::default() },
            tiercel: if ours { summary } else { serde_json::Value::Null },
            ..Measured::default()
        },
        host_s: 1.0,
    }
}

fn summary() -> Summary {
    let quarter = Some("25%");
    let mut results = vec![
        result("hot", Half::Tuning, "all-fast", None, 100),
        result("bfs", Half::Report, "all-fast", None, 200),
        result("hot", Half::Tuning, "all-slow", None, 400),
        result("hot", Half::Tuning, "first-touch", quarter, 200),
        result("bfs", Half::Report, "first-touch", quarter, 400),
        result("hot", Half::Tuning, "lru", quarter, 100),
        result("bfs", Half::Report, "lru", quarter, 800),
    ];
    results[3].measured.warnings.push("odd".to_owned());
    // 20 of 100 ms are no waits; a quarter of the peak of 8 MiB serves nine of ten misses.
    let (bytes, shares) = (vec![1 << 20, 2 << 20], vec![0.5, 0.9]);
    results[0].measured.best = Some(Best { waits: 0.8, bytes, shares });
    for (at, ms) in [(5, 2), (6, 4)] {
        results[at].measured.waits = Some(Waits {
            for_cpu_ns: ms * 3_000_000,
            for_cpu_ns_max: ms * 500_000,
            for_memory_ns: ms * 1_000_000,
            for_memory_ns_max: ms * 250_000,
        });
    }
    let manifest =
        Manifest { name: "t".to_owned(), what: "It shows.".to_owned(), keys: Vec::new() };
    summarise(&manifest, results, Vec::new())
}

#[test]
fn means_compare_with_every_baseline() {
    let summary = summary();
    let scenario = summary.scenarios()[0];
    expect![[r#"
        | policy      | time over all-fast | speed over first touch |       worst | over kernel tiering | workloads |
        |-------------|-------------------:|-----------------------:|------------:|--------------------:|----------:|
        | all-fast    |              1.000 |                  2.000 | 2.000 (bfs) |                   - |         2 |
        | all-slow    |              4.000 |                  0.500 | 0.500 (hot) |                   - |         1 |
        | first-touch |              2.000 |                  1.000 | 1.000 (bfs) |                   - |         2 |
        | lru         |              2.000 |                  1.000 | 0.500 (bfs) |                   - |         2 |
        | bound       |              1.000 |                  2.000 | 2.000 (hot) |                   - |         1 |
    "#]]
    .assert_eq(&summary.means(scenario, None).markdown());
    let report = summary.means(scenario, Some(Half::Report)).markdown();
    assert!(
        report.contains("| lru         |              4.000 |                  0.500 |"),
        "{report}"
    );
}

#[test]
fn the_document_has_every_table_and_picture() {
    let mut summary = summary();
    let names = |summary: &Summary| -> Vec<String> {
        summary.pictures().expect("drawn").into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(&summary), ["m-25.svg"]);
    let text = summary.markdown(&["m-25.svg"]);
    summary.results.push(result("hot", Half::Tuning, "lru", Some("50%"), 100));
    assert_eq!(names(&summary), ["m-25.svg", "m-50.svg", "m-capacity.svg"]);
    for part in [
        "It shows.",
        "m-25.svg",
        "### Held out",
        "| lru         | 1.000 | 4.000 |",
        "| lru         |          2.0 |        0.25 |        0.0 |           3.0 |",
        "|           3.0 |               1.0 |",
        "| lru    |            9.00 |        2.00 |                      3.00 |        1.00 |    2",
        "| hot      |      4.0 |   64 |   32.0 |  4.0 |         1 |",
        "0.900",
        "| hot/first-touch/25% |",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_run_that_beats_its_bound_is_a_defect() {
    let mut summary = summary();
    assert_eq!(summary.beaten(), [], "as fast as the bound");
    // Were it but 0.55, 20 of 400 ms and 0.45 of the waits would be left, 191 ms.
    summary.results[0].measured.best.as_mut().expect("known").shares[1] = 0.55;
    let [(run, over)] = &summary.beaten()[..] else { panic!("{:?}", summary.beaten()) };
    assert_eq!((run.as_str(), format!("{over:.3}")), ("hot/lru/25%", "0.524".to_owned()));
    assert!(summary.markdown(&[]).contains("DEFECT"), "{}", summary.markdown(&[]));
    // It had more memory than it was meant to have, which the bound accounts for.
    summary.results[5].measured.free_bytes = 9 << 20;
    assert_eq!(summary.beaten(), []);
}

#[test]
fn failures_are_shown() {
    let mut summary = summary();
    let cell = summary.results[0].cell.clone();
    let why = "the guest stopped".to_owned();
    summary.failures.push(Failure { key: "k".to_owned(), cell, attempts: 2, why });
    let text = summary.markdown(&[]);
    assert!(text.contains("hot/all-fast, 2 times:\n\n```text\nthe guest stopped\n```"), "{text}");
}
