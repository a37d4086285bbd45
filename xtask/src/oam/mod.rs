//! `cargo xtask oam`: OAM's evaluation (4) in `tiercel replay`. In: our workloads, which it builds
//! and records, and made streams. Out: `lab/results/oam-replay`, a line for each policy, machine
//! and size of fast memory, and for each program. Knows nothing of the tables that show them.
//!
//! Recordings differ from run to run: programs share the CPU with other work, which moves the slots
//! of time. From profiles on everything is deterministic.

mod lines;
mod machines;
mod programs;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::exec;
use lines::{ProgramLine, Set, StandingLine, programs_of};
use machines::Variant;
use programs::{Built, PROGRAMS, Recorded};

/// Machines of OAM's evaluation: 4.1, and 4.6.
const MACHINES: [&str; 2] = ["pcm", "optane-oam"];
const SIZES: &str = "25%,50%,100%";
/// Whether rankings survive is asked where fast memory binds.
const VARIED_SIZE: &str = "50%";
const POLICIES: &str = "oam,oam-unmoved,joint,joint-edp,clock-dwf,2pp,tiercel,first-touch,all-fast";
/// Those that are ranked.
const RANKED: &str = "oam,joint,2pp,clock-dwf";

#[derive(Args)]
pub struct Options {
    /// Use what an earlier call built and recorded
    #[arg(long)]
    recorded: bool,
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
}

/// What is stored in one file.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Our workloads
    Programs,
    /// Made streams
    Made,
    /// Our workloads on machines each figure of which is 25% higher, and lower
    Varied,
}

impl Options {
    fn includes(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

pub fn main(options: &Options) -> Result<()> {
    let folder = exec::root().join("lab/results/oam-replay");
    std::fs::create_dir_all(&folder)?;
    let built = if options.recorded { Built::earlier() } else { programs::build_all()? };
    let recorded = recorded(&built, options.recorded)?;
    if options.includes(Part::Programs) {
        let (standings, programs) = of_programs(&built, &recorded)?;
        write(&folder.join("programs.jsonl"), &standings)?;
        write(&folder.join("each.jsonl"), &programs)?;
    }
    if options.includes(Part::Made) {
        write(&folder.join("made.jsonl"), &of_made(&built)?)?;
    }
    if options.includes(Part::Varied) {
        write(&folder.join("varied.jsonl"), &of_variants(&built, &recorded)?)?;
    }
    Ok(())
}

/// Profiles of all programs, in their order.
fn recorded(built: &Built, earlier: bool) -> Result<Vec<Recorded>> {
    let kept = exec::target().join("oam/recorded.json");
    if earlier {
        let text = std::fs::read_to_string(&kept).context("run it without --recorded first")?;
        return Ok(serde_json::from_str(&text)?);
    }
    let mut all = Vec::new();
    for program in PROGRAMS {
        eprintln!("oam: recording {}", program.name);
        all.push(program.recorded(built)?);
    }
    std::fs::write(kept, serde_json::to_string(&all)?)?;
    Ok(all)
}

fn of_programs(
    built: &Built,
    recorded: &[Recorded],
) -> Result<(Vec<StandingLine>, Vec<ProgramLine>)> {
    let (mut standings, mut programs) = (Vec::new(), Vec::new());
    for machine in MACHINES {
        eprintln!("oam: programs on {machine}");
        let mut replay = replay(built, machine, SIZES, POLICIES);
        let printed = printed(profiles(&mut replay, recorded))?;
        standings.extend(StandingLine::all(&printed, Set::Programs, machine, None)?);
        programs.extend(programs_of(&printed, machine)?);
    }
    Ok((standings, programs))
}

fn of_made(built: &Built) -> Result<Vec<StandingLine>> {
    let mut standings = Vec::new();
    for machine in MACHINES {
        eprintln!("oam: made streams on {machine}");
        let printed = printed(replay(built, machine, SIZES, POLICIES).args(["--streams", "all"]))?;
        standings.extend(StandingLine::all(&printed, Set::Made, machine, None)?);
    }
    Ok(standings)
}

fn of_variants(built: &Built, recorded: &[Recorded]) -> Result<Vec<StandingLine>> {
    let file = exec::target().join("oam/varied.toml");
    let mut standings = Vec::new();
    for Variant { what, text } in machines::variants(MACHINES[0])? {
        eprintln!("oam: programs on {} with {what}", MACHINES[0]);
        std::fs::write(&file, text)?;
        let path = file.display().to_string();
        let mut replay = replay(built, &path, VARIED_SIZE, RANKED);
        let printed = printed(profiles(&mut replay, recorded))?;
        standings.extend(StandingLine::all(&printed, Set::Programs, MACHINES[0], Some(&what))?);
    }
    Ok(standings)
}

fn replay(built: &Built, machine: &str, sizes: &str, policies: &str) -> Command {
    let mut replay = Command::new(&built.tiercel);
    replay.args(["replay", "--json", "--seeds", "1", "--machine", machine]);
    replay.args(["--fast", sizes, "--policy", policies]);
    replay
}

fn profiles<'c>(replay: &'c mut Command, recorded: &[Recorded]) -> &'c mut Command {
    for Recorded { profile, lasts_s } in recorded {
        replay.arg("--profile").arg(profile).arg("--lasts").arg(lasts_s.to_string());
    }
    replay
}

fn printed(replay: &mut Command) -> Result<Value> {
    serde_json::from_str(&exec::output(replay)?).context("what replay printed")
}

fn write<T: Serialize>(path: &Path, lines: &[T]) -> Result<PathBuf> {
    let mut file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    for line in lines {
        writeln!(file, "{}", serde_json::to_string(line)?)?;
    }
    Ok(path.to_owned())
}
