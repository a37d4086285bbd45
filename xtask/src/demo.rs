//! `./x demo`: Tiercel on a real program, start to end. In: nothing. Out: which of liblinear's
//! objects deserve fast memory, by function and line. Knows nothing of how Tiercel finds out: it
//! prints the output of `tiercel run`.
//!
//! liblinear is the distribution's: its source package, compiled here with -g because packaged
//! binaries carry no line numbers, or, where there are no source packages, its packaged binary.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::sources::Sources;
use crate::{build, exec};

/// The budget the demo runs under.
const FAST: &str = "25%";
/// Generated examples, features of each and features in all: 90 MiB of nodes, and 10 to 20 s of
/// training.
const EXAMPLES: u64 = 60_000;
const FEATURES_EACH: u64 = 100;
const FEATURES: u64 = 40_000;

pub fn main() -> Result<()> {
    say("building Tiercel");
    build::everything()?;
    let folder = exec::target().join("demo");
    std::fs::create_dir_all(&folder)?;
    let train = match from_source(&folder) {
        Ok(train) => train,
        Err(error) => {
            say(&format!("no source package, so functions but no lines: {error:#}"));
            packaged()?
        }
    };
    let data = folder.join("data");
    if !data.exists() {
        say(&format!("writing {EXAMPLES} examples to {}", data.display()));
        // Written under another name first: an interrupted demo must not leave half a file behind.
        std::fs::write(data.with_extension("part"), examples(EXAMPLES))?;
        std::fs::rename(data.with_extension("part"), &data)?;
    }
    let tiercel = exec::target().join("release/tiercel");
    let mut run = Command::new(&tiercel);
    run.args(["run", "--no-learn", "--verbose", "--fast", FAST, "--"]).arg(train);
    run.args(["-q", "-s", "0", "-c", "2000", "-e", "0.000001"])
        .arg(&data)
        .arg(folder.join("model"));
    let top = format!("{}/", exec::root().display());
    say(&format!("running {}", exec::shown(&run).replace(&top, "")));
    exec::run(&mut run)
}

fn say(text: &str) {
    eprintln!("demo: {text}");
}

/// Compiles liblinear from its source package, once.
fn from_source(folder: &Path) -> Result<PathBuf> {
    let train = folder.join("liblinear-train");
    if train.exists() {
        return Ok(train);
    }
    let source = Sources::below(folder.to_path_buf()).original("liblinear")?;
    say("compiling it with -g");
    let mut compile = Command::new("g++");
    compile.current_dir(&source).args(["-O2", "-g", "-w", "-o"]).arg(&train);
    compile.args(["train.c", "linear.cpp", "tron.cpp", "-lblas"]);
    exec::run(&mut compile)?;
    Ok(train)
}

fn packaged() -> Result<PathBuf> {
    let path = PathBuf::from("/usr/bin/liblinear-train");
    ensure!(path.exists(), "package liblinear-tools is not installed");
    Ok(path)
}

/// Examples in liblinear's format; some features are far more frequent than others, as words are.
fn examples(count: u64) -> String {
    let mut chance = fastrand::Rng::with_seed(42);
    let mut random = move |bound: u64| chance.u64(..bound);
    let mut text = String::new();
    for _ in 0..count {
        let mut features: Vec<u64> = (0..FEATURES_EACH)
            .map(|_| {
                let near = random(FEATURES) + 1;
                random(near) + 1
            })
            .collect();
        features.sort_unstable();
        features.dedup();
        let votes = features.iter().filter(|feature| *feature % 3 == 0).count();
        let label = if 3 * votes > features.len() { "+1" } else { "-1" };
        text.push_str(label);
        for feature in features {
            let _ = write!(text, " {feature}:0.{}", random(9) + 1);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_in_order_and_of_two_kinds() {
        let text = examples(100);
        assert!(text.lines().any(|line| line.starts_with("+1")));
        assert!(text.lines().any(|line| line.starts_with("-1")));
        let first = text.lines().next().unwrap_or_default();
        let features: Vec<u64> = first
            .split(' ')
            .skip(1)
            .map(|pair| pair.split(':').next().unwrap_or_default().parse().unwrap())
            .collect();
        assert!(features.is_sorted() && features.len() > 50, "{first}");
    }
}
