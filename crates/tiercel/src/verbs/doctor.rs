//! `tiercel doctor`: which features work on this machine, and how to enable the others.
//! In: findings of every part. Out: a table or JSON. Knows nothing of how a fact was found.

use super::{say, say_json};
use crate::args::DoctorArgs;
use crate::table::{Align, Table};
use crate::terminal::complain;
use crate::{exit, library};
use serde::Serialize;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use tiercel_daemon::socket_dir::usual_directory;
use tiercel_machine::{Finding, Machine, Standing};

/// What tiering needs besides one sampler.
const NEEDED: [&str; 3] = ["runtime", "tiers", "move-pages"];

/// How names of findings about samplers begin.
const SAMPLER: &str = "sampler-";

/// Everything that is printed.
#[derive(Serialize)]
struct Checked {
    /// Whether data can be moved between tiers here.
    tiering: bool,
    /// What prevents it: names of findings.
    prevented_by: Vec<String>,
    findings: Vec<Finding>,
}

/// `tiercel doctor`; the exit status says whether tiering works here.
pub fn doctor(args: &DoctorArgs) -> ExitCode {
    let mut findings = vec![runtime(), sockets(), tiers()];
    findings.extend(tiercel_sampler::support());
    findings.extend(tiercel_mover::support());
    findings.push(tiercel_daemon::pages::support());
    let checked = checked(findings);
    let printed = match args.json {
        true => say_json("doctor", &checked),
        false => say(&text(&checked)),
    };
    if let Err(error) = printed {
        complain(&error);
        return ExitCode::from(exit::FAILED);
    }
    ExitCode::from(if checked.tiering { 0 } else { exit::FAILED })
}

fn checked(findings: Vec<Finding>) -> Checked {
    let works = |finding: &Finding| match finding.name.as_str() {
        // With one tier the finding is that moves are modelled.
        "tiers" => finding.standing == Standing::Ok,
        _ => finding.standing != Standing::Absent,
    };
    let is_needed = |finding: &&Finding| NEEDED.contains(&finding.name.as_str());
    let missing = findings.iter().filter(is_needed).filter(|finding| !works(finding));
    let mut prevented_by: Vec<String> = missing.map(|finding| finding.name.clone()).collect();
    let mut samplers = findings.iter().filter(|finding| finding.name.starts_with(SAMPLER));
    if !samplers.any(works) {
        prevented_by.push("samplers".to_owned());
    }
    Checked { tiering: prevented_by.is_empty(), prevented_by, findings }
}

fn text(checked: &Checked) -> String {
    let mut table =
        Table::new(&[("", Align::Left), ("feature", Align::Left), ("finding", Align::Left)]);
    for finding in &checked.findings {
        let mark = match finding.standing {
            Standing::Ok => "ok",
            Standing::Degraded => "limited",
            Standing::Absent => "no",
        };
        table.row(vec![mark.to_owned(), finding.name.clone(), finding.detail.clone()]);
    }
    let mut out = table.text();
    for finding in checked.findings.iter().filter(|finding| !finding.remedy.is_empty()) {
        out.push_str(&format!("\n{}: {}\n", finding.name, finding.remedy));
    }
    out.push_str(&match checked.tiering {
        true => "\ntiering works on this machine\n".to_owned(),
        false => format!(
            "\ntiering does not work on this machine: see {} above; recording, planning and the lab do \
             not need it\n",
            checked.prevented_by.join(", ")
        ),
    });
    out
}

/// Whether the runtime is there and a program starts with it.
fn runtime() -> Finding {
    const NAME: &str = "runtime";
    let library = match library::find() {
        Ok(library) => library,
        Err(missing) => return Finding::absent(NAME, missing.to_string(), "build or install it"),
    };
    if !library::can_be_preloaded(&library) {
        let detail = format!("{} has a space or a colon in its path", library.display());
        return Finding::absent(NAME, detail, "move it elsewhere: the loader splits there");
    }
    // The loader complains on standard error about a library it cannot load, and goes on.
    let tried = Command::new("/bin/true")
        .env("LD_PRELOAD", &library)
        .env_remove("TIERCEL_SOCKET")
        .stdout(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() && output.stderr.is_empty() => {
            Finding::ok(NAME, format!("{} loads", library.display()))
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let detail = format!("{} does not load: {said}", library.display());
            Finding::absent(NAME, detail, "build it for this system")
        }
        Err(error) => Finding::degraded(NAME, format!("/bin/true cannot be run: {error}"), ""),
    }
}

/// The folder of the sockets.
fn sockets() -> Finding {
    let directory = usual_directory();
    let detail = format!("daemons and runs listen in {}", directory.display());
    if directory.starts_with("/tmp") {
        return Finding::degraded("sockets", detail, "set XDG_RUNTIME_DIR to a private folder");
    }
    Finding::ok("sockets", detail)
}

/// Whether there is more than one tier.
fn tiers() -> Finding {
    match Machine::discover(Path::new("/")) {
        Err(error) => Finding::absent("tiers", error.to_string(), "mount /sys and /proc"),
        Ok((machine, _)) => match machine.tiers().len() {
            0 | 1 => Finding::degraded(
                "tiers",
                "this machine has one tier of memory: moves are modelled, no memory is moved",
                "choose a machine to model with --machine, or run in the lab",
            ),
            count => Finding::ok("tiers", format!("{count} tiers of memory")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiering_needs_tiers_a_runtime_a_mover_and_a_sampler() {
        let ok = |name: &str| Finding::ok(name, "");
        let all = || vec![ok("runtime"), ok("tiers"), ok("move-pages"), ok("sampler-probe")];
        assert!(checked(all()).tiering);
        let without = |at: usize, finding: Finding| {
            let mut findings = all();
            findings[at] = finding;
            let Checked { tiering, prevented_by, .. } = checked(findings);
            assert!(!tiering);
            prevented_by.join(" ")
        };
        assert_eq!(without(0, Finding::absent("runtime", "", "")), "runtime");
        assert_eq!(without(1, Finding::degraded("tiers", "", "")), "tiers");
        assert_eq!(without(2, Finding::absent("move-pages", "", "")), "move-pages");
        assert_eq!(without(3, Finding::absent("sampler-probe", "", "")), "samplers");
        let mut blind = all();
        blind.insert(3, Finding::absent("sampler-perf", "", ""));
        assert!(checked(blind).tiering, "one sampler is enough");
    }
}
