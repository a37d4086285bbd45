//! Record, plan, run: a small program with two places and two phases, on a modelled machine; the
//! same after a rebuild; and plans that are none.

mod common;

use common::{Process, compile, stderr, tiercel};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tiercel_machine::NodeId;
use tiercel_plan::{Plan, PlannedPhase, PlannedPlacement, PlannedRange, read_plan, write_plan};

/// Objects of `grid` and `table`; two phases, entered in turn. `%EDIT%` is what a rebuild changes.
const PROGRAM: &str = r#"
#include <tiercel.h>
#include <stdio.h>
#include <unistd.h>
#define BYTES (2ul << 20)
%EDIT%
__attribute__((noinline)) static char *make_grid(void) { return malloc(BYTES); }
__attribute__((noinline)) static char *make_table(void) { return malloc(BYTES); }
int main(int argc, char **argv) {
    char *grid[4], *table[4];
    for (int i = 0; i < 4; i++) {
        grid[i] = memset(make_grid(), 1, BYTES);
        table[i] = memset(make_table(), 2, BYTES);
    }
    for (int turn = 0; turn < 3; turn++) {
        tiercel_phase("assemble");
        for (int i = 0; i < 4; i++)
            memset(grid[i], turn, BYTES);
        usleep(100000); /* time for moves ahead of the next phase */
        tiercel_phase("solve");
        for (int i = 0; i < 4; i++)
            memset(table[i], turn, BYTES);
    }
    usleep(300000); /* time for a look at where all of it is */
    (void)argv;
    if (argc > 1) { /* lives on until its standard input has a line */
        puts(getenv("TIERCEL_SOCKET"));
        fflush(stdout);
        getchar();
    }
    return 5;
}
"#;

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let stage = Stage { folder: tempfile::tempdir().unwrap() };
        stage.build("");
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn build(&self, edit: &str) {
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
        let source = PROGRAM.replace("%EDIT%", edit);
        compile(self.folder.path(), "app", &source, &[include, "-Wl,--build-id"]);
    }

    fn tiercel(&self, args: &[&str]) -> Output {
        tiercel().current_dir(self.folder.path()).args(args).output().unwrap()
    }

    /// Records the program, and plans for half of its memory.
    fn planned(&self) -> Plan {
        let record = ["record", "--machine", "spr-cxl", "--sampler", "none", "--", "./app"];
        let output = self.tiercel(&record);
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        let output = self.tiercel(&["plan", "app.profile", "--fast", "50%"]);
        assert!(output.status.success(), "{}", stderr(&output));
        read_plan(&self.path("app.plan")).unwrap()
    }

    /// A plan in which grids are fast but in `solve`, and tables are fast in `solve` only.
    fn turned(&self) {
        let mut plan = self.planned();
        let at = |phase: Option<&str>, node: u16| PlannedPlacement {
            phase: phase.map(ToOwned::to_owned),
            node: NodeId(node),
            other: None,
            ranges: Vec::new(),
            gain_ns: 1.0,
            confidence: 0.5,
        };
        for site in &mut plan.sites {
            let grid = site.label.contains("make_grid");
            if grid || site.label.contains("make_table") {
                let (usual, solve) = if grid { (0, slow_node()) } else { (slow_node(), 0) };
                site.classes[0].placements = vec![at(None, usual), at(Some("solve"), solve)];
            }
        }
        let named = |(name, moves, next): (&str, bool, Option<&str>)| PlannedPhase {
            name: name.to_owned(),
            moves,
            next: next.map(ToOwned::to_owned),
        };
        let phases = [("start", false, None), ("assemble", true, None), ("solve", true, None)];
        plan.phases = phases.map(named).into();
        write_plan(&plan, &self.path("turned.plan")).unwrap();
        // The same, with room for all, and with tables that may move while grids are assembled.
        let phases = [("start", false, None), ("assemble", true, Some("solve"))];
        plan.phases = phases.into_iter().chain([("solve", true, None)]).map(named).collect();
        plan.machine.memories[0].capacity_bytes = 64 << 20;
        let tables = plan.sites.iter_mut().filter(|site| site.label.contains("make_table"));
        tables.for_each(|site| site.classes[0].prefetch = vec!["assemble".to_owned()]);
        write_plan(&plan, &self.path("early.plan")).unwrap();
    }

    /// Runs the program by a plan; the summary.
    fn run(&self, plan: &str) -> Value {
        self.run_with(&["--plan", plan])
    }

    fn run_with(&self, args: &[&str]) -> Value {
        let output = self.tiercel(&[&["run", "--json"], args, &["--", "./app"]].concat());
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        serde_json::from_str(&stderr(&output))
            .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
    }
}

/// The second memory's node of the modelled machine.
fn slow_node() -> u16 {
    let machine = tiercel_machine::Machine::builtin("spr-cxl").unwrap().unwrap();
    machine.tiers()[1].nodes[0].0
}

/// Bytes by node of the objects of one place, at the last look; large objects have a site each.
fn nodes_of(summary: &Value, place: &str) -> BTreeMap<String, u64> {
    let mut nodes = BTreeMap::new();
    let is_there = |site: &&Value| site["name"].as_str().unwrap().contains(place);
    for site in summary["sites"].as_array().unwrap().iter().filter(is_there) {
        for (node, bytes) in site["used"]["last_nodes"].as_object().unwrap() {
            *nodes.entry(node.clone()).or_default() += bytes.as_u64().unwrap();
        }
    }
    nodes
}

#[test]
fn objects_are_born_and_moved_as_planned() {
    let stage = Stage::new();
    stage.turned();
    let summary = stage.run("turned.plan");
    let planned = &summary["summary"]["plan"];
    assert_eq!(planned["matched"], planned["sites"], "{planned}");
    assert_eq!(planned["by_name"], 0);
    assert_eq!(planned["phases_entered"], 6);
    assert!(planned["planned_bytes"].as_u64().unwrap() >= 16 << 20, "{planned}");
    assert!(summary["summary"]["modelled"].as_bool().unwrap(), "this machine has one kind");
    // The last phase is `solve`: by then, grids are in the slow memory and tables in the fast one.
    let mib8 = 8u64 << 20;
    let slow = slow_node().to_string();
    assert_eq!(nodes_of(&summary, "make_grid"), [(slow, mib8)].into());
    assert_eq!(nodes_of(&summary, "make_table"), [("0".to_owned(), mib8)].into());
    let moved = summary["summary"]["moves"]["moved_bytes"]["asked"].as_u64().unwrap_or(0);
    assert!(moved >= 2 * mib8 && moved <= 6 * 2 * mib8, "{moved}");
}

#[test]
fn large_objects_are_born_in_two_memories_and_moved_as_planned() {
    let stage = Stage::new();
    stage.build("#undef BYTES\n#define BYTES (8ul << 20)");
    stage.turned();
    let mut plan = read_plan(&stage.path("turned.plan")).unwrap();
    plan.machine.memories[0].capacity_bytes = 64 << 20;
    // Grids are always cut. Tables are slow, and have half of each in the fast memory in `solve`.
    for site in &mut plan.sites {
        let is_grid = site.label.contains("make_grid");
        for place in &mut site.classes[0].placements {
            if is_grid || place.phase.is_some() {
                (place.node, place.other) = (NodeId(0), Some(NodeId(slow_node())));
                // A quarter in the middle, and a half.
                let (from, to) = if is_grid { (0.5, 0.75) } else { (0.0, 0.5) };
                place.ranges = vec![PlannedRange { from, to }];
            }
        }
    }
    write_plan(&plan, &stage.path("cut.plan")).unwrap();
    // The ledger learns of births at ticks.
    std::fs::write(stage.path("settings"), "policy.tick_ms = 10\n").unwrap();
    let summary = stage.run_with(&["--plan", "cut.plan", "--config", "settings"]);
    let share = |place| {
        let nodes = nodes_of(&summary, place);
        let fast = nodes.get("0").copied().unwrap_or(0);
        fast as f64 / nodes.values().sum::<u64>() as f64
    };
    let near = |share: f64, of: f64| (share - of).abs() < 0.01;
    assert!(near(share("make_grid"), 0.25), "{}", share("make_grid"));
    assert!(near(share("make_table"), 0.5), "{}", share("make_table"));
    let moved = summary["summary"]["moves"]["moved_bytes"]["asked"].as_u64().unwrap_or(0);
    let half = 16 << 20;
    assert!(moved > 3 * half && moved < 6 * half, "five times half of the tables: {moved}");
}

#[test]
fn objects_move_before_the_phase_they_move_for() {
    let stage = Stage::new();
    stage.turned();
    let mib8 = 8u64 << 20;
    let early = |plan| stage.run(plan)["summary"]["plan"]["early_bytes"].as_u64();
    assert_eq!(early("turned.plan"), Some(0));
    // All four tables, each of the three times; a shared machine may be too slow for some.
    let moved = early("early.plan").unwrap();
    assert!(moved > 0 && moved <= 3 * mib8, "{moved}");
    let ended = stage.run("early.plan");
    assert_eq!(nodes_of(&ended, "make_table"), [("0".to_owned(), mib8)].into());
}

#[test]
fn a_rebuilt_program_is_known_by_function_and_line() {
    let stage = Stage::new();
    stage.turned();
    stage.build("__attribute__((used)) static int added(int x) { return x * 3; }");
    let mut command = tiercel();
    command.current_dir(stage.folder.path());
    command.args(["run", "--plan", "turned.plan", "--quiet", "--", "./app", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(&mut command);
    let control = process.line().trim().replace(".sock", ".control");
    let both = common::wait("both places to be known again", || {
        let args = ["status", "--json", "--socket", &control];
        let status: Value = serde_json::from_slice(&stage.tiercel(&args).stdout).ok()?;
        (status["plan"]["by_name"].as_u64()? >= 2).then(|| status["plan"].clone())
    });
    assert!(both["matched"].as_u64() >= Some(2), "{both}");
    assert_eq!(process.end().code(), Some(5));
}

#[test]
fn a_planned_site_the_program_never_reaches_is_named() {
    let stage = Stage::new();
    let mut plan = stage.planned();
    plan.sites[0].hash ^= 1;
    plan.sites[0].stack.clear();
    plan.sites[0].label = "elsewhere".to_owned();
    write_plan(&plan, &stage.path("foreign.plan")).unwrap();
    let output = stage.tiercel(&["run", "-v", "--plan", "foreign.plan", "--", "./app"]);
    let said = stderr(&output);
    assert!(said.contains("unmatched  elsewhere"), "{said}");
    assert!(said.contains("MODELLED"), "{said}");
    let output = stage.tiercel(&[
        "run",
        "-v",
        "--machine",
        "xeonmax-hbm",
        "--plan",
        "foreign.plan",
        "--",
        "./app",
    ]);
    assert!(stderr(&output).contains("the plan was made for spr-cxl"), "{}", stderr(&output));
}

#[test]
fn a_place_is_explained() {
    let stage = Stage::new();
    stage.planned();
    let output = stage.tiercel(&["plan", "app.profile", "--explain", "make_grid"]);
    let said = common::stdout(&output);
    assert!(output.status.success() && said.contains("app.c:"), "{said}{}", stderr(&output));
    assert!(said.contains("all in"), "{said}");
    assert!(said.contains("utility (OAM) 1.00, delay 1.00 x energy 1.00; by phase 1.00"), "{said}");
    let oam = ["plan", "app.profile", "--explain", "make_grid", "--strategy", "oam"];
    let output = stage.tiercel(&[&oam[..], &["--machine", "pcm"]].concat());
    let said = common::stdout(&output);
    assert!(said.contains("utility (OAM) 0.00, delay 1.00 x energy 0.00; by phase"), "{said}");
    let output = stage.tiercel(&[&oam[..], &["--machine", "optane-oam"]].concat());
    assert!(stderr(&output).contains("the energy of memory"), "{}", stderr(&output));
    let by_time = ["--machine", "optane-oam", "--objective", "time"];
    let said = common::stdout(&stage.tiercel(&[&oam[..], &by_time].concat()));
    assert!(said.contains("utility (OAM) 1.00, of delay alone: energies are unknown"), "{said}");
    let output = stage.tiercel(&[&oam[..], &["--machine", "pcm", "--epsilon", "1"]].concat());
    assert!(stderr(&output).contains("epsilon is a number above 1"), "{}", stderr(&output));
    let output = stage.tiercel(&["plan", "app.profile", "--explain", "nowhere"]);
    assert!(stderr(&output).contains("no site of the profile"), "{}", stderr(&output));
}

#[test]
fn less_memory_is_predicted() {
    let stage = Stage::new();
    stage.planned();
    let args =
        ["whatif", "app.profile", "--fast", "25%", "--fast", "100%", "--json", "--svg", "p.svg"];
    let output = stage.tiercel(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let points = &said["points"];
    assert_eq!(points.as_array().unwrap().len(), 2, "{points}");
    assert_eq!(points[1]["slowdown"], 1.0, "nothing was observed: nothing is slower");
    let most = |point: &Value, what: &str| point["bounds"][what]["most"].as_f64().unwrap();
    assert!(most(&points[0], "slowdown") > 1.5, "nor is it known not to be: {points}");
    assert!(std::fs::read_to_string(stage.path("p.svg")).unwrap().starts_with("<svg"));
    let args = ["whatif", "app.profile", "--machine", "spr-cxl", "--machine", "xeonmax-hbm"];
    let said = common::stdout(&stage.tiercel(&args));
    assert!(said.contains("xeonmax-hbm") && said.contains("33%"), "{said}");
    assert!(said.contains("bounds, not estimates") && said.contains("lab compare"), "{said}");
    assert!(said.contains("1.00 to ") && !said.contains("+-"), "{said}");
}

#[test]
fn a_report_is_one_file_and_names_in_it_are_names() {
    let stage = Stage::new();
    let mut plan = stage.planned();
    let hostile = "</td><script>alert(1)</script>";
    plan.sites[0].label = hostile.to_owned();
    write_plan(&plan, &stage.path("hostile.plan")).unwrap();
    let args = ["report", "app.profile", "--plan", "hostile.plan", "--machine", "xeonmax-hbm"];
    let output = stage.tiercel(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let html = std::fs::read_to_string(stage.path("app.html")).unwrap();
    for word in ["make_grid", "make_table", "app.c:7", "start", "xeonmax-hbm", "2MiB", "<svg"] {
        assert!(html.contains(word), "{word} is not in the report");
    }
    let short = html.split("<h2>").nth(1).unwrap();
    assert!(short.starts_with("In short") && short.contains("no access was sampled"), "{short}");
    assert!(short.contains("of it fast on xeonmax-hbm, it may take 0."), "{short}");
    assert!(html.contains("UTC. This page was written by tiercel 0.1.0 on "), "no origin");
    assert!(html.contains("&lt;script&gt;") && !html.contains("<script"), "a name became markup");
    for word in ["src=", "href=", "url(", "@import"] {
        assert!(!html.contains(word), "{word}: the file needs another");
    }
    // Refused, each with what is wrong; and nothing is written.
    let refused = [
        (["report", "missing.profile", "-o", "x.html"], "missing.profile"),
        (["report", "app.profile", "--plan", "app.c"], "is not a plan"),
        (["report", "app.profile", "--machine", "missing"], "missing"),
        (["report", "app.profile", "-o", "nowhere/x.html"], "cannot write the report"),
    ];
    for (args, expect) in refused {
        let output = stage.tiercel(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains(expect), "{}", stderr(&output));
    }
    assert!(!stage.path("x.html").exists());
}

/// Results of an experiment, by hand: everything fast and slow, and a run by the stage's plan, with
/// the profile and the plan kept.
fn keep_results(stage: &Stage) {
    let row = |policy: &str, wall_ns: u64, tiercel: Value| {
        let cell = serde_json::json!({
            "machine": "m", "workload": "w", "half": "tuning", "policy": policy, "repeat": 0,
        });
        let resident = serde_json::json!({
            "observations": 1, "fast_share": 1.0, "fast_bytes_max": 0, "fast_bytes": 0,
            "slow_bytes": 0,
        });
        let moved = serde_json::json!({
            "migrated_bytes": 0, "failed_bytes": 0, "promoted_bytes": 0, "demoted_bytes": 0,
            "hint_faults": 0,
        });
        let measured = serde_json::json!({
            "time_ns": wall_ns, "wall_ns": wall_ns, "peak_bytes": 1, "free_bytes": 0,
            "resident": resident, "moved": moved, "tiercel": tiercel, "last_line": "",
        });
        let row = serde_json::json!({
            "key": policy, "cell": cell, "timed": true, "vcpus": 1, "measured": measured,
            "host_s": 1.0,
        });
        format!("{row}\n")
    };
    let kept = stage.path("lab/profiles/m");
    std::fs::create_dir_all(&kept).unwrap();
    std::fs::rename(stage.path("app.profile"), kept.join("app.profile")).unwrap();
    std::fs::copy(stage.path("app.plan"), kept.join("idp.plan")).unwrap();
    let time =
        serde_json::json!({ "slowdown": 3.5, "error": 0.0, "all_slow": 4.0, "rest_ns": 0.0 });
    let planned = serde_json::json!({ "expected": { "time": time }, "profile": "app.profile" });
    let rows = [
        row("all-fast", 100, Value::Null),
        row("all-slow", 400, Value::Null),
        row("idp", 101, serde_json::json!({ "planned": planned })),
    ];
    std::fs::write(stage.path("lab/runs.jsonl"), rows.concat()).unwrap();
    let manifest =
        serde_json::json!({ "name": "t", "what": "", "keys": ["all-fast", "all-slow", "idp"] });
    std::fs::write(stage.path("lab/manifest.json"), manifest.to_string()).unwrap();
}

#[test]
fn predictions_are_compared_with_the_lab_and_repeated() {
    let stage = Stage::new();
    stage.planned();
    keep_results(&stage);
    let profile = "lab/profiles/m/app.profile";
    let report = || {
        let output = stage.tiercel(&["report", profile, "--lab", "lab", "-o", "app.html"]);
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read_to_string(stage.path("app.html")).unwrap()
    };
    let html = report();
    for word in ["1 of 2 are within 10", "Errors of predictions", "m: w/idp", "+249"] {
        assert!(html.contains(word), "{word} is not in the report");
    }
    // Nothing was observed of the program: by this build its plan is predicted to cost nothing.
    let output = stage.tiercel(&["lab", "report", "lab", "--predict"]);
    assert!(stderr(&output).contains("1 predictions were repeated"), "{}", stderr(&output));
    let anew = report();
    assert!(html.contains("3.500") && anew.contains("1.000") && !anew.contains("3.500"));
    let readme = std::fs::read_to_string(stage.path("lab/README.md")).unwrap();
    assert!(readme.contains("prediction-errors.svg") && readme.contains("1.000"), "{readme}");
    let rows = std::fs::read_to_string(stage.path("lab/runs.jsonl")).unwrap();
    let others: String =
        rows.lines().filter(|row| !row.contains("idp")).collect::<Vec<_>>().join("\n");
    std::fs::write(stage.path("lab/runs.jsonl"), others + "\n").unwrap();
    let cases = [("lab", "has no run by a plan"), ("nowhere", "not a folder of results")];
    for (folder, expect) in cases {
        let output = stage.tiercel(&["report", profile, "--lab", folder, "-o", "x.html"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expect), "{}", stderr(&output));
    }
    assert!(!stage.path("x.html").exists());
}

#[test]
fn a_plan_that_is_there_is_predicted() {
    let stage = Stage::new();
    stage.planned();
    let args = ["whatif", "app.profile", "--plan", "app.plan", "--json"];
    let output = stage.tiercel(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let points = &said["points"];
    assert_eq!(points.as_array().unwrap().len(), 1, "{points}");
    assert_eq!((&points[0]["machine"], &points[0]["slowdown"]), (&"spr-cxl".into(), &1.0.into()));
    let output = stage.tiercel(&["whatif", "app.profile", "--plan", "app.plan", "--fast", "25%"]);
    assert!(!output.status.success(), "one or the other: {}", stderr(&output));
}

#[test]
fn plans_that_are_none_stop_before_the_program_starts() {
    let stage = Stage::new();
    stage.planned();
    let whole = std::fs::read_to_string(stage.path("app.plan")).unwrap();
    let spoilt = [
        (String::new(), "is not a plan: it is empty"),
        (whole[..whole.len() / 2].to_owned(), "the plan is damaged"),
        ("{\"hello\": 1}".to_owned(), "does not identify a plan"),
        ("#!/bin/sh\n".to_owned(), "is not a plan"),
        (
            whole.replace("\"version\": 3", "\"version\": 7"),
            "plan version 7; this build reads version 3",
        ),
        (whole.replace("\"unplanned\"", "\"unplaned\""), "unknown field `unplaned`"),
        (whole.replacen("\"node\": 0", "\"node\": 9", 1), "node 9"),
    ];
    for (text, expect) in spoilt {
        std::fs::write(stage.path("bad.plan"), &text).unwrap();
        let args = ["run", "--plan", "bad.plan", "--", "touch", "started"];
        let output = stage.tiercel(&args);
        assert_eq!(output.status.code(), Some(125), "{expect}: {}", stderr(&output));
        assert!(stderr(&output).contains(expect), "{expect}: {}", stderr(&output));
        assert!(!Path::new(&stage.path("started")).exists(), "{expect}: it was started");
    }
    let output = stage.tiercel(&["run", "--plan", "/dev/null", "--", "touch", "started"]);
    assert!(stderr(&output).contains("not a regular file"), "{}", stderr(&output));
}
