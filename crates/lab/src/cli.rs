//! The verbs of `tiercel lab`, without the argument parsing and the terminal. In: options. Out: the
//! guest's output on the caller's streams, the command's exit status. Knows nothing of how lines
//! are drawn.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tiercel_machine::Machine;

use crate::image::{in_path, quote};
use crate::{
    Acceleration, Cache, Guest, Model, Outcome, Payload, Progress, Request, Size, Streams, Timing,
    Topology, Trace,
};

/// The folder of machines in a checkout.
pub(crate) const MACHINES: &str = "lab/machines";

/// How long a command may take by default.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Options of both `lab run` and `lab shell`.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// A name from `lab/machines` or built in, or a path to a TOML file.
    pub machine: String,
    /// Size of the guest.
    pub size: Size,
    /// KVM or TCG.
    pub acceleration: Acceleration,
    /// Files and directories for the guest: (path here, path there).
    pub files: Vec<(PathBuf, String)>,
    /// Environment for the guest: (name, value).
    pub environment: Vec<(String, String)>,
}

/// Options of `lab run`.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The guest.
    pub guest: GuestOptions,
    /// Program and arguments; the program is looked up on the host and copied with its libraries.
    pub command: Vec<String>,
    /// Time after which the guest counts as hung.
    pub timeout: Duration,
    /// The folder for the files of the guest's `/out`.
    pub out: Option<PathBuf>,
    /// Whether every access takes the time that follows from the machine's figures.
    pub timed: bool,
    /// How accesses are timed.
    pub model: Model,
    /// Where a trace of all misses goes.
    pub trace: Option<Trace>,
}

/// `lab run`: boots, runs one command, and copies its files back.
pub fn run(
    options: &RunOptions,
    streams: Streams<'_>,
    progress: &mut Progress<'_>,
) -> Result<Outcome> {
    ensure!(!options.command.is_empty(), "no command given; for example: tiercel lab run -- ls /");
    let machine = find_machine(&options.guest.machine, &[Path::new(MACHINES)])?;
    let (topology, mut payload) = assemble(&options.guest)?;
    let plugin = options.timed.then(plugin).transpose()?;
    let command = command_line(&options.command, &mut payload)?;
    let guest = Guest::prepare(&Cache::of_user()?, options.guest.acceleration, progress)?;
    let request = Request {
        topology: &topology,
        payload,
        command: &command,
        environment: &options.guest.environment,
        timeout: options.timeout,
        out: options.out.as_deref(),
        timing: plugin.as_deref().map(|plugin| Timing {
            plugin,
            machine: &machine,
            model: options.model,
            trace: options.trace.as_ref(),
        }),
    };
    guest.run(request, streams)
}

/// `lab shell`: boots into a shell on this terminal.
pub fn shell(options: &GuestOptions, progress: &mut Progress<'_>) -> Result<()> {
    let (topology, payload) = assemble(options)?;
    let guest = Guest::prepare(&Cache::of_user()?, options.acceleration, progress)?;
    progress(&format!(
        "lab: booting {}; its shell appears in {}, and what is typed before is lost",
        options.machine,
        match guest.acceleration() {
            Acceleration::Kvm => "some 5 s",
            // Measured on two busy cores; 10 s on idle ones.
            _ => "10 to 60 s",
        }
    ));
    guest.shell(&topology, payload, &options.environment)
}

/// Finds a machine: a path if it contains `/` or ends in `.toml`, else the TOML of that name in one
/// of `dirs`, else a built-in machine.
pub fn find_machine(name: &str, dirs: &[&Path]) -> Result<Machine> {
    let as_path = Path::new(name);
    if name.contains('/') || name.ends_with(".toml") {
        return read_machine(as_path);
    }
    let file = format!("{name}.toml");
    if let Some(path) = dirs.iter().map(|dir| dir.join(&file)).find(|path| path.exists()) {
        return read_machine(&path);
    }
    if let Some(machine) = Machine::builtin(name) {
        let machine = machine.with_context(|| format!("built-in machine {name}"))?;
        return Ok(machine);
    }
    bail!("no machine {name:?}; give a path to a TOML file or one of: {}", known(dirs).join(", "))
}

fn read_machine(path: &Path) -> Result<Machine> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the machine {}", path.display()))?;
    Machine::from_toml(&text).with_context(|| format!("in {}", path.display()))
}

fn known(dirs: &[&Path]) -> Vec<String> {
    let stem = |path: PathBuf| {
        let is_toml = path.extension().is_some_and(|e| e == "toml");
        is_toml.then(|| path.file_stem().map(|s| s.to_string_lossy().into_owned())).flatten()
    };
    let files = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    let mut names: Vec<String> = files.filter_map(|e| stem(e.ok()?.path())).collect();
    names.extend(tiercel_machine::BUILTIN_NAMES.iter().map(|name| (*name).to_owned()));
    names.sort();
    names.dedup();
    names
}

fn assemble(options: &GuestOptions) -> Result<(Topology, Payload)> {
    let machine = find_machine(&options.machine, &[Path::new(MACHINES)])?;
    let topology = Topology::of(&machine, options.size)?;
    let mut payload = Payload::default();
    ourselves(&mut payload)?;
    for (host, guest) in &options.files {
        payload.tree(host, guest)?;
    }
    Ok((topology, payload))
}

/// The timing plugin, as built or installed.
pub(crate) fn plugin() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = ["libtiercel_emulator.so", "../lib/tiercel/libtiercel_emulator.so"];
    places.iter().map(|place| beside.join(place)).find(|path| path.exists()).with_context(|| {
        let dir = beside.display();
        format!(
            "libtiercel_emulator.so is not in {dir}; run cargo build --release -p tiercel-emulator"
        )
    })
}

/// Copies this program and the runtime, so that `tiercel run` works in the guest.
pub(crate) fn ourselves(payload: &mut Payload) -> Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let small = stripped(&own);
    payload.program(small.as_ref().map_or(own.as_path(), |file| file.path()), "usr/bin/tiercel")?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = ["libtiercel.so", "../runtime/libtiercel.so", "../lib/tiercel/libtiercel.so"];
    if let Some(runtime) = places.iter().map(|place| beside.join(place)).find(|p| p.exists()) {
        payload.program(&runtime, "usr/lib/tiercel/libtiercel.so")?;
    }
    Ok(())
}

/// A copy without debug information, if binutils are installed: the guest unpacks it into memory.
fn stripped(program: &Path) -> Option<tempfile::NamedTempFile> {
    let copy = tempfile::NamedTempFile::new().ok()?;
    let mut strip = std::process::Command::new("strip");
    let status = strip.arg("-o").arg(copy.path()).arg(program).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then_some(copy)
}

/// The shell line for a command.
fn command_line(command: &[String], payload: &mut Payload) -> Result<String> {
    let words = take_along(command, payload)?;
    let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
    Ok(format!("{}exec {}\n", same_directory()?, quoted.join(" ")))
}

/// Shell words that change to the directory with the same path as the current one, so that relative
/// names of copied files mean the same in the guest.
pub(crate) fn same_directory() -> Result<String> {
    let here = std::env::current_dir().context("cannot find the current directory")?;
    let path = quote(&here.to_string_lossy());
    Ok(format!("mkdir -p {path} && cd {path} && "))
}

/// A command in the guest. A program that exists on the host is copied and keeps its path; other
/// names refer to the guest's own tools.
pub(crate) fn take_along(command: &[String], payload: &mut Payload) -> Result<Vec<String>> {
    let mut words = command.to_vec();
    for word in &mut words {
        // `tiercel run -- ./app`: the program after the dashes is copied too.
        let named = word.contains('/') && Path::new(&word).is_file();
        let Some(path) = named.then(|| PathBuf::from(&word)) else { continue };
        let path = std::path::absolute(path).context("cannot find the current directory")?;
        *word = path.to_string_lossy().into_owned();
        payload.program(&path, word)?;
    }
    let first = &words[0];
    let found = (!first.contains('/') && first != "tiercel").then(|| in_path(first)).flatten();
    match found {
        Some(path) => payload.program(&path, &path.to_string_lossy())?,
        None if first.contains('/') && !Path::new(first).exists() => {
            bail!("{first}: no such file here")
        }
        None => {}
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_machine_lists_the_known_ones() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("mine.toml"), "").expect("written");
        let error = find_machine("yours", &[dir.path()]).expect_err("unknown");
        assert!(error.to_string().contains("mine"), "{error}");
        assert!(find_machine("./nowhere.toml", &[]).is_err());
    }

    #[test]
    fn a_missing_path_is_refused_and_a_tool_of_the_guest_is_not() {
        let line = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            command_line(&words, &mut Payload::default())
        };
        assert!(line(&["/nonexistent/x"]).is_err());
        assert_eq!(
            line(&["no-such-tool-here", "a b"]).expect("a tool of the guest"),
            format!("{}exec 'no-such-tool-here' 'a b'\n", same_directory().expect("known"))
        );
    }
}
