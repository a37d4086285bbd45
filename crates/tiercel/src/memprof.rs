//! `tiercel profile import-memprof`: a profile of what LLVM's memory profiler recorded. In: its
//! file, the program. Out: a profile, written. Knows nothing of the form of either: LLVM's own
//! tools read them, of the version that compiles for `tiercel cc`.

use crate::program::find;
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use tiercel_machine::Machine;
use tiercel_profile::{
    Declaration, LIMIT_BYTES, MemprofRun, Overview, memprof_declarations, memprof_profile,
    memprof_symbols,
};
use tiercel_symbolize::{build_id, hex};

const READER: &str = "llvm-profdata-19";
const DEBUG_READER: &str = "llvm-dwarfdump-19";
/// Names that one call looks for: 500 names of 256 bytes are a sixteenth of a command line's 2 MiB.
const NAMES_AT_ONCE: usize = 500;

/// What is imported, and where to.
#[derive(clap::Args, Debug)]
pub struct ImportArgs {
    /// What the program wrote: memprof.profraw.PID
    raw: PathBuf,
    /// The program, with debug information
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Write the profile to this folder, replacing an existing one
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// `tiercel profile import-memprof`.
pub fn import_memprof(args: &ImportArgs) -> Result<()> {
    let overview = import(&args.raw, &args.binary, &args.output)?;
    if args.json {
        return say_json("profile", &overview);
    }
    let (sites, objects) = (overview.sites.len(), overview.objects);
    say(&format!("{}: {sites} sites, {objects} allocations\n", args.output.display()))
}

fn import(raw: &Path, binary: &Path, output: &Path) -> Result<Overview> {
    tiercel_profile::vacant(output)?;
    let program = binary.canonicalize().with_context(|| binary.display().to_string())?;
    let mut words: Vec<OsString> = vec!["show".into(), "--memory".into()];
    words.extend(["--profiled-binary".into(), program.clone().into(), raw.into()]);
    let shown = printed(READER, &words)?;
    let symbols = memprof_symbols(&shown).with_context(|| raw.display().to_string())?;
    let (machine, _) = Machine::discover(Path::new("/"))?;
    let run = MemprofRun {
        machine,
        build_id: hex::text(&build_id(&program).unwrap_or_default()),
        declarations: declarations(&program, &symbols)?,
        program: program.to_string_lossy().into_owned(),
    };
    let mut profile = memprof_profile(&shown, run).with_context(|| raw.display().to_string())?;
    profile.keep(LIMIT_BYTES);
    tiercel_profile::write(&profile, output)?;
    Ok(profile.overview())
}

fn declarations(
    program: &Path,
    symbols: &BTreeSet<String>,
) -> Result<HashMap<String, Declaration>> {
    let mut found = HashMap::new();
    let symbols: Vec<&String> = symbols.iter().collect();
    for names in symbols.chunks(NAMES_AT_ONCE) {
        let mut words: Vec<OsString> =
            names.iter().map(|name| format!("--name={name}").into()).collect();
        words.push(program.into());
        found.extend(memprof_declarations(&printed(DEBUG_READER, &words)?));
    }
    Ok(found)
}

/// What a tool of LLVM prints.
fn printed(tool: &str, words: &[OsString]) -> Result<String> {
    let path = std::env::var_os("PATH");
    let found = find(OsStr::new(tool), path.as_deref());
    let found = found
        .with_context(|| format!("{tool} is not in PATH; on Debian 12: apt install llvm-19"))?;
    let out = Command::new(found).args(words).output().with_context(|| tool.to_owned())?;
    if !out.status.success() {
        bail!("{tool}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
