//! What `--json` prints against docs/schema, by a validator that is not ours (python3-jsonschema).

mod common;

use common::{Daemon, Process, compile, stderr, tiercel};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Objects that live long enough to be sampled, of two sites.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
__attribute__((noinline)) char *make_table(size_t bytes) { return malloc(bytes); }
__attribute__((noinline)) char *make_grid(size_t bytes) { return malloc(bytes); }
int main(int argc, char **argv) {
    char *table = make_table(8 << 20), *grid = make_grid(4 << 20);
    time_t end = time(NULL) + 2;
    do {
        memset(table, 1, 8 << 20);
        memset(grid, 2, 4 << 20);
    } while (time(NULL) < end);
    if (argc > 1) {
        puts(argv[1]);
        fflush(stdout);
        getchar();
    }
    return table[5] + grid[5] - 3;
}
"#;

/// Formats that need a guest, or several memory nodes.
const ELSEWHERE: [&str; 4] = ["attach", "lab-truth", "page", "run-pages"];

/// Reads `format file` lines, and complains of what is not valid.
const VALIDATOR: &str = r#"
import json, pathlib, sys
from jsonschema import Draft202012Validator
schemas, bad = pathlib.Path(sys.argv[1]), 0
for line in sys.stdin:
    name, file = line.rstrip("\n").split(" ", 1)
    schema = json.loads((schemas / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    for error in Draft202012Validator(schema).iter_errors(json.loads(open(file).read())):
        bad += 1
        print(name, "/".join(map(str, error.absolute_path)), error.message[:300])
sys.exit(bad > 0)
"#;

/// Texts that were printed, by format.
struct Printed {
    folder: tempfile::TempDir,
    lines: Vec<(String, PathBuf)>,
}

impl Printed {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Keeps each line of `text`, all of this format.
    fn keep(&mut self, format: &str, text: &[u8]) {
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(!text.trim().is_empty(), "{format}: nothing was printed");
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["format"], format!("tiercel-{format}/1"));
            let file = self.path(&format!("{}.json", self.lines.len()));
            std::fs::write(&file, line).unwrap();
            self.lines.push((format.to_owned(), file));
        }
    }

    /// Runs a verb in the folder and keeps what it prints.
    fn verb(&mut self, format: &str, words: &[&str]) {
        let mut command = tiercel();
        let output = command.current_dir(self.folder.path()).args(words).arg("--json").output();
        let output = output.unwrap();
        assert!(output.status.success() || format == "doctor", "{words:?}: {}", stderr(&output));
        self.keep(format, &output.stdout);
    }

    /// Runs a program in a way that writes to standard error.
    fn program(&mut self, format: &str, words: &[&str]) {
        let mut command = tiercel();
        command.current_dir(self.folder.path()).args(words).args(["--", "./app"]);
        self.keep(format, &command.output().unwrap().stderr);
    }
}

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema")
}

/// Names of schemas there are.
fn known() -> BTreeSet<String> {
    let entries = std::fs::read_dir(schemas()).unwrap().map(|entry| entry.unwrap().path());
    let json = entries.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    json.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn everything_that_is_printed_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "app", PROGRAM, &["-Wl,--build-id"]);
    let mut printed = Printed { folder, lines: Vec::new() };
    offline(&mut printed);
    recorded(&mut printed);
    running(&mut printed);
    lab(&mut printed);
    let shown: BTreeSet<String> = printed.lines.iter().map(|(format, _)| format.clone()).collect();
    let all: BTreeSet<String> = shown.into_iter().chain(ELSEWHERE.map(str::to_owned)).collect();
    assert_eq!(all, known(), "each schema is of something that is printed");
    validate(&printed);
}

fn offline(printed: &mut Printed) {
    printed.verb("topo", &["topo"]);
    for machine in ["spr-cxl", "pcm", "two-socket-optane"] {
        printed.verb("topo", &["topo", "--machine", machine]);
    }
    printed.verb("doctor", &["doctor"]);
    printed.verb("config", &["config"]);
    printed.verb("environment", &["daemon", "--env", "--secure-heap"]);
    let streams = ["replay", "--streams", "hot/0", "--seeds", "1", "--fast", "25%"];
    printed.verb("replay", &streams);
    let energies = ["--machine", "pcm", "--policy", "oam,never", "--static-power", "1"];
    printed.verb("replay", &[&streams[..], &energies].concat());
}

fn recorded(printed: &mut Printed) {
    let record = ["record", "--json", "--machine", "spr-cxl", "--sampler", "probe", "-o"];
    for profile in ["one.profile", "two.profile"] {
        printed.program("record", &[&record[..], &[profile]].concat());
    }
    printed.verb("profile", &["profile", "show", "one.profile"]);
    let merge = ["profile", "merge", "-o", "both.profile", "one.profile", "two.profile"];
    printed.verb("profile", &merge);
    let diff = ["profile", "diff", "one.profile", "two.profile"];
    printed.verb("profile-diff", &diff);
    printed.verb("profile-fidelity", &[&diff[..], &["--fidelity"]].concat());
    printed.verb("whatif", &["whatif", "both.profile", "--machine", "xeonmax-hbm"]);
    printed.verb("heat", &["heat", "both.profile"]);
    printed.verb("wss", &["wss", "both.profile", "--window", "100ms"]);
    printed.verb("replay", &["replay", "--profile", "one.profile"]);
    let mut plan = tiercel();
    plan.current_dir(printed.folder.path()).args(["plan", "one.profile", "-o", "a.plan"]);
    assert!(plan.status().unwrap().success());
    printed.program("run", &["run", "--json", "--plan", "a.plan", "--adapt", "--tick", "20ms"]);
    printed.program("run", &["run", "--json", "--sampler", "none", "--pool", "0=64MiB"]);
    learned(printed);
}

/// The second run begins with what the first one learned.
fn learned(printed: &mut Printed) {
    let run = ["run", "--json", "--machine", "spr-cxl", "--sampler", "probe", "--fast", "4MiB"];
    let data = printed.path("data");
    let learning = |words: &[&str]| {
        let mut command = tiercel();
        command.current_dir(data.parent().unwrap()).env("XDG_DATA_HOME", &data).args(words);
        command.output().unwrap()
    };
    for _ in 0..2 {
        let output = learning(&[&run[..], &["--", "./app"]].concat());
        printed.keep("run", &output.stderr);
    }
    for (format, words) in [
        ("learned-list", &["learned", "list"][..]),
        ("learned", &["learned", "show", "app"]),
        ("learned-forget", &["learned", "forget", "app"]),
    ] {
        printed.keep(format, &learning(&[words, &["--json"]].concat()).stdout);
    }
}

fn running(printed: &mut Printed) {
    let mut daemon = Daemon::start(&["--json", "--machine", "spr-cxl", "--tick", "20ms"]);
    let mut app = daemon.hosted(printed.path("app").to_str().unwrap());
    let mut app = Process::start(app.arg("ready").stdin(Stdio::piped()).stdout(Stdio::piped()));
    assert_eq!(app.line(), "ready\n");
    for (format, words) in [
        ("status", &["status"][..]),
        ("top", &["top"]),
        ("top-processes", &["top", "--processes"]),
        ("why", &["why"]),
    ] {
        let output = daemon.ask(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        printed.keep(format, &output.stdout);
    }
    app.end();
    let mut stop = tiercel();
    assert!(stop.args(["daemon", "--stop", "--dir"]).arg(daemon.dir()).status().unwrap().success());
    let text = daemon.process.rest();
    daemon.process.end();
    printed.keep("daemon", text.as_bytes());
}

/// Stored results, of a copy: tables beside them are written anew.
fn lab(printed: &mut Printed) {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/results/pair");
    let copy = Command::new("cp").arg("-r").arg(results).arg(printed.path("pair")).status();
    assert!(copy.unwrap().success());
    printed.verb("lab-run", &["lab", "report", "pair"]);
}

fn validate(printed: &Printed) {
    let list: String = printed
        .lines
        .iter()
        .map(|(format, file)| format!("{format} {}\n", file.display()))
        .collect();
    let mut python = Command::new("python3");
    python.args(["-c", VALIDATOR]).arg(schemas()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut python.stdin.take().unwrap(), list.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}{}", common::stdout(&output), stderr(&output));
}

/// A format that the sources name has a schema, whose constant is that name.
#[test]
fn each_format_has_a_schema() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut named = BTreeSet::new();
    for folder in [sources.clone(), sources.join("verbs")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let text = text.split("#[cfg(test)]").next().unwrap();
            for call in ["say_json(\"", "json_of(\"", "format_name(\""] {
                let calls = text.split(call).skip(1);
                named.extend(calls.map(|rest| rest.split('"').next().unwrap().to_owned()));
            }
        }
    }
    assert_eq!(named, known());
    for name in known() {
        let text = std::fs::read_to_string(schemas().join(format!("{name}.json"))).unwrap();
        let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
        let constant = &schema["properties"]["format"]["const"];
        assert_eq!(constant, &format!("tiercel-{name}/1"));
    }
}
