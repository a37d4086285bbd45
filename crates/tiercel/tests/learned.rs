//! From run to run, on a modelled machine: the second run of a program begins with what the first
//! one learned; everything that may be found in the folder instead; `tiercel learned`.

mod common;

use common::{compile, stderr, stdout, tiercel};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tiercel_learned::{decode, encode};

/// What is cold is born first, and is larger than fast memory. It takes a second of CPU time, so
/// that something is seen. `probe` sees writes on every
/// machine, but not how often: which of both is worth more, tests write into the file themselves.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define COLD (48ul << 20)
#define HOT (8ul << 20)
__attribute__((noinline)) static char *make_cold(void) { return malloc(COLD); }
__attribute__((noinline)) static char *make_hot(void) { return malloc(HOT); }
int main(void) {
    char *cold = memset(make_cold(), 1, COLD), *hot = memset(make_hot(), 2, HOT);
    for (int turn = 0; clock() < CLOCKS_PER_SEC; turn++)
        memset(hot, 2 + turn % 2, HOT);
    return cold[5] + (hot[5] != 1 ? 3 : 0);
}
"#;

/// The program's exit status.
const STATUS: i32 = 4;

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let stage = Stage { folder: tempfile::tempdir().unwrap() };
        compile(stage.folder.path(), "app", PROGRAM, &["-Wl,--build-id"]);
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tiercel(&self) -> Command {
        let mut command = tiercel();
        command.current_dir(self.folder.path()).env("XDG_DATA_HOME", self.path("data"));
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.tiercel();
        command.args(["run", "--machine", "spr-cxl", "--fast", "16MiB"]);
        command.args(["--tick", "50ms", "--trigger", "never"]);
        let is_named = args.contains(&"--sampler");
        command.args(if is_named { &[][..] } else { &["--sampler", "probe"] });
        command.args(args).args(["--", "./app"]);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(STATUS), "{}", stderr(&output));
        output
    }

    fn run_json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["--json"]].concat());
        serde_json::from_slice(&output.stderr).unwrap()
    }

    fn learned(&self, args: &[&str]) -> Output {
        self.tiercel().arg("learned").args(args).output().unwrap()
    }

    fn learned_json(&self, args: &[&str]) -> Value {
        let output = self.learned(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What is known, with the value of the sites as a sampler sees it that counts misses.
    fn correct(&self) {
        let mut known = decode(&std::fs::read(self.file()).unwrap()).unwrap();
        let shown = self.learned_json(&["show", "app"]);
        for (site, row) in known.sites.iter_mut().zip(shown["sites"].as_array().unwrap()) {
            let is_hot = row["label"].as_str().unwrap().contains("make_hot");
            (site.samples, site.value_ns) = if is_hot { (900.0, 9e8) } else { (9.0, 9e6) };
            site.accesses = site.samples;
            site.part_value_ns.clear();
        }
        std::fs::write(self.file(), encode(&known).unwrap()).unwrap();
    }

    /// The only file of what is known.
    fn file(&self) -> PathBuf {
        let folder = std::fs::read_dir(self.path("data/tiercel/learned")).unwrap();
        let mut files = folder
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "learned"));
        files.next().expect("something is known")
    }
}

/// The share of a function's bytes that was in fast memory.
fn fast_share(run: &Value, function: &str) -> f64 {
    let sites = run["sites"].as_array().unwrap();
    let named = |site: &&Value| site["name"].as_str().is_some_and(|name| name.contains(function));
    let site = sites.iter().find(named).expect("the site was used");
    let nodes = site["used"].as_object().map_or(&site["last_nodes"], |used| &used["last_nodes"]);
    let bytes = |node: &str| nodes[node].as_f64().unwrap_or(0.0);
    bytes("0") / nodes.as_object().unwrap().keys().map(|node| bytes(node)).sum::<f64>()
}

fn remarks(run: &Value) -> String {
    run["remarks"].to_string()
}

#[test]
fn the_second_run_is_born_right_and_says_so() {
    let stage = Stage::new();
    let first = stage.run_json(&[]);
    assert_eq!(first["recalled"], Value::Null);
    assert!(first["summary"]["samples"]["attributed"].as_u64().unwrap() > 0, "{first}");
    assert!(fast_share(&first, "make_hot") < 0.5, "it comes last: {first}");
    stage.correct();
    let second = stage.run_json(&[]);
    assert_eq!(second["recalled"]["runs"], 1);
    assert_eq!(fast_share(&second, "make_hot"), 1.0, "{second}");
    assert!(second["summary"]["learned"]["matched"].as_u64().unwrap() >= 2, "{second}");
    stage.correct();
    let third = stderr(&stage.run(&["-v"]));
    let line = third.lines().find(|line| line.contains("learned    births of"));
    let line = line.unwrap_or_else(|| panic!("{third}"));
    assert!(line.contains("from 2 runs, the last ") && line.contains(" born there"), "{line}");
    let blind = stage.run_json(&["--no-learn"]);
    assert_eq!(blind["recalled"], Value::Null);
    assert!(fast_share(&blind, "make_hot") < 0.5, "{blind}");
    assert_eq!(stage.learned_json(&["list"])["programs"][0]["runs"], 3, "it added nothing");
}

#[test]
fn what_is_known_is_listed_shown_and_forgotten() {
    let stage = Stage::new();
    let none = stage.learned(&["list"]);
    assert!(none.status.success() && stdout(&none).contains("nothing is known"), "{none:?}");
    stage.run(&["--no-learn"]);
    std::fs::write(stage.path("off.toml"), "learn = false\n").unwrap();
    stage.run(&["--config", "off.toml"]);
    assert!(!stage.path("data").exists(), "nothing was learned");
    stage.run(&[]);
    let list = stdout(&stage.learned(&["list"]));
    assert!(list.contains("app") && list.contains("build-"), "{list}");
    for program in ["app", "./app", stage.path("app").to_str().unwrap()] {
        let shown = stdout(&stage.learned(&["show", program]));
        assert!(shown.contains("make_hot") && shown.contains("1 run, the last"), "{shown}");
    }
    let shown = stage.learned_json(&["show", "app"]);
    assert!(shown.to_string().contains("\"label\":\"make_hot "), "{shown}");
    let unknown = stage.learned(&["show", "other"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("nothing is known of other"), "{unknown:?}");
    assert_eq!(stage.learned_json(&["forget", "app"])["forgotten"].as_array().unwrap().len(), 1);
    assert_eq!(stage.learned_json(&["list"])["programs"].as_array().unwrap().len(), 0);
    assert_eq!(stdout(&stage.learned(&["forget", "--all"])), "0 builds were forgotten\n");
}

#[test]
fn a_damaged_file_is_a_remark_and_is_replaced() {
    let stage = Stage::new();
    stage.run(&[]);
    let whole = std::fs::read(stage.file()).unwrap();
    std::fs::write(stage.file(), &whole[..whole.len() / 2]).unwrap();
    let list = stage.learned_json(&["list"]);
    let problem = list["programs"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("it is damaged"), "{list}");
    let run = stage.run_json(&[]);
    assert!(remarks(&run).contains("what earlier runs learned is not used"), "{run}");
    assert_eq!(run["recalled"], Value::Null);
    assert_eq!(stage.learned_json(&["list"])["programs"][0]["runs"], 1);
}

#[test]
fn a_home_that_cannot_be_written_changes_nothing_for_the_program() {
    let stage = Stage::new();
    let run = |folder: &Path| {
        let mut command = stage.command(&["--json"]);
        let output = command.env("XDG_DATA_HOME", folder).output().unwrap();
        assert_eq!(output.status.code(), Some(STATUS), "{}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stderr).unwrap()
    };
    let said = run(Path::new("/proc/self/none"));
    assert!(remarks(&said).contains("what this run learned is not kept: cannot make"), "{said}");
    std::fs::create_dir_all(stage.path("open/tiercel")).unwrap();
    std::os::unix::fs::symlink("/tmp", stage.path("open/tiercel/learned")).unwrap();
    let said = run(&stage.path("open"));
    assert!(remarks(&said).contains("is not used"), "{said}");
    assert!(remarks(&said).contains("is not kept"), "{said}");
}

#[test]
fn a_run_without_samples_leaves_no_trace() {
    let stage = Stage::new();
    stage.run(&["--sampler", "none"]);
    assert!(!stage.path("data").exists(), "there was nothing to learn");
    stage.run(&[]);
    let before = std::fs::read(stage.file()).unwrap();
    stage.run(&["--sampler", "none"]);
    assert_eq!(std::fs::read(stage.file()).unwrap(), before);
}
