//! Runs real programs, plainly or hosted. In: a script of workloads/programs and how to host its
//! command. Out: its output and the cost of its hosted commands. Knows nothing of the programs: the
//! scripts do.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{build, exec, measure};

/// CPU time that one script may use. Chosen, not measured: scripts take seconds.
const CPU_LIMIT: Duration = Duration::from_secs(600);
/// The exit status of a script when a program that it needs is not installed.
const MISSING: i32 = 77;

/// A script that runs a real program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The script's name without its ending.
    pub name: String,
    /// Its first comment: what is run.
    pub what: String,
    script: PathBuf,
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    /// What it printed on stdout, with the statuses of the hosted commands in it.
    pub stdout: String,
    /// What it printed on stderr, with Tiercel's messages in it.
    pub stderr: String,
    /// How the script ended; 77 when a program is not installed.
    pub status: Option<i32>,
    /// The total cost of the hosted commands.
    pub cost: measure::Cost,
}

impl Ran {
    /// Whether a program the script needs is not installed; stderr says which.
    pub fn is_missing(&self) -> bool {
        self.status == Some(MISSING)
    }
}

/// How the command is hosted.
#[derive(Clone, Debug)]
pub enum Host {
    /// It is not hosted.
    Plain,
    /// `tiercel run` with these arguments.
    Tiercel(Vec<&'static str>),
    /// `shaker`, which moves the heap all the time, and the file that it reports to.
    Shaken { shaker: PathBuf, report: PathBuf },
}

/// The built parts a hosted run needs.
pub struct Parts {
    tiercel: PathBuf,
}

impl Parts {
    /// Builds them.
    pub fn build() -> Result<Parts> {
        build::everything()?;
        Ok(Parts::built())
    }

    /// As they were built last.
    pub fn built() -> Parts {
        Parts { tiercel: exec::target().join("release/tiercel") }
    }

    /// The words of the command line before the hosted command.
    fn words(&self, host: &Host) -> Vec<String> {
        match host {
            Host::Plain => vec!["--".into()],
            Host::Tiercel(arguments) => {
                let mut words = vec!["--".into(), self.tiercel.display().to_string()];
                // No run depends on those before it.
                words.extend(["run", "--no-learn"].map(str::to_owned));
                words.extend(arguments.iter().map(|word| word.to_string()));
                words.push("--".into());
                words
            }
            Host::Shaken { shaker, .. } => vec!["--".into(), shaker.display().to_string()],
        }
    }
}

/// Where the scripts are.
pub fn folder() -> PathBuf {
    exec::root().join("workloads/programs")
}

/// Every script that shows that real programs run as they do without Tiercel, sorted by name.
pub fn all() -> Result<Vec<Program>> {
    in_folder(&folder())
}

/// Every script of a folder, sorted by name.
pub fn in_folder(folder: &Path) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let script = entry?.path();
        let name = script.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name == "lib" {
            continue;
        }
        let text = std::fs::read_to_string(&script)?;
        let what = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let what = what.with_context(|| format!("{}: no first comment", script.display()))?;
        programs.push(Program { name, what: what.into(), script: script.clone() });
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// The script of that name.
pub fn named(name: &str) -> Result<Program> {
    let found = all()?.into_iter().find(|program| program.name == name);
    found.with_context(|| format!("no script workloads/programs/{name}.sh"))
}

/// Runs a script in an empty folder of its own, which is removed afterwards.
pub fn run(program: &Program, parts: &Parts, host: &Host, size: u32) -> Result<Ran> {
    let folder = tempfile::Builder::new().prefix("tiercel-program-").tempdir()?;
    let report = folder.path().join("cost");
    let work = folder.path().join("work");
    std::fs::create_dir(&work)?;
    let (stdout, stderr) = (folder.path().join("stdout"), folder.path().join("stderr"));
    let mut command = exec::command("bash");
    command.arg(&program.script).current_dir(&work);
    command.env("HOST", hosting(parts, host, &report)?).env("SIZE", size.to_string());
    if let Host::Shaken { report, .. } = host {
        command.env("SHAKER_REPORT", report);
        command.env("TIERCEL_LIB", exec::target().join("runtime/libtiercel.so"));
    }
    command.stdin(Stdio::null()).stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
    let status = exec::run_limited(&mut command, CPU_LIMIT)?;
    Ok(Ran {
        stdout: text_of(&stdout)?,
        stderr: text_of(&stderr)?,
        status: status.code(),
        cost: measure::read(&report)?,
    })
}

/// The value of HOST: this program's `measure`, then what hosts the command.
pub fn hosting(parts: &Parts, host: &Host, report: &Path) -> Result<String> {
    let mut words = vec![std::env::current_exe()?.display().to_string(), "measure".into()];
    words.push(format!("--report={}", report.display()));
    words.extend(parts.words(host));
    Ok(words.join(" "))
}

fn text_of(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}
