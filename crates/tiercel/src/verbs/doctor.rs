//! `tiercel doctor`: which features work on this machine, and how to enable the others.
//! In: findings of every part. Out: a table or JSON. Knows nothing of how a fact was found.

use super::{say, say_json};
use crate::args::DoctorArgs;
use crate::library;
use crate::table::{Align, Table};
use anyhow::Result;
use std::path::Path;
use std::process::{Command, Stdio};
use tiercel_daemon::socket_dir::usual_directory;
use tiercel_machine::{Finding, Machine, Standing};

/// `tiercel doctor`.
pub fn doctor(args: &DoctorArgs) -> Result<()> {
    let mut findings = vec![runtime(), sockets(), tiers()];
    findings.extend(tiercel_sampler::support());
    findings.extend(tiercel_mover::support());
    if args.json {
        return say_json(&findings);
    }
    let mut table =
        Table::new(&[("", Align::Left), ("feature", Align::Left), ("finding", Align::Left)]);
    for finding in &findings {
        let mark = match finding.standing {
            Standing::Ok => "ok",
            Standing::Degraded => "limited",
            Standing::Absent => "no",
        };
        table.row(vec![mark.to_owned(), finding.name.clone(), finding.detail.clone()]);
    }
    let mut out = table.text();
    for finding in findings.iter().filter(|finding| !finding.remedy.is_empty()) {
        out.push_str(&format!("\n{}: {}\n", finding.name, finding.remedy));
    }
    say(&out)
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
