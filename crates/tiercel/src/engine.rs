//! Puts an engine together from the command line and the configuration file.
//! In: [`EngineArgs`]. Out: [`DaemonConfig`] and [`Parts`]. Knows nothing of programs.

use crate::args::{BackingArg, EngineArgs};
use crate::privilege::Privilege;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use tiercel_daemon::{Backing, DaemonConfig, Parts, Settings};
use tiercel_machine::number::whole_ms;
use tiercel_machine::{BUILTIN_NAMES, Machine, TimeSpan};
use tiercel_mover::{ModelledMover, Mover};
use tiercel_policy::{Limit, Trigger};
use tiercel_profile::RecorderConfig;
use tiercel_sampler::{Kind, Sampler};

/// The modelled machine where this one has one kind of memory and the user names none.
const DEFAULT_MODELLED_MACHINE: &str = "cascadelake-optane";

/// Resolution of times in a profile: a wake-up takes some 20 us, which is 0.2% of a CPU at one
/// wake-up in 10 ms.
const RECORD_CLOCK: TimeSpan = TimeSpan(Duration::from_millis(10));

/// Longest configuration or machine description. Chosen, not measured: a hundred times a
/// description of 64 nodes.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// The runtime checks frees where this is set to other than 0.
const SECURE_HEAP_VARIABLE: &str = "TIERCEL_SECURE_HEAP";

/// How the remark on a missing sampler begins.
pub const UNOBSERVED: &str = "accesses are not observed";

/// What an engine is made of, with remarks for the user.
pub struct Engine {
    /// The checked settings.
    pub config: DaemonConfig,
    /// Machine, sampler, mover.
    pub parts: Parts,
    /// Features that do not work as requested, to be shown.
    pub remarks: Vec<String>,
    /// What programs find in their environment, beside the socket and the library.
    pub environment: Vec<(&'static str, OsString)>,
}

/// Variables by which a program's heap is set, as the settings say.
pub fn heap_environment(settings: &Settings) -> Vec<(&'static str, OsString)> {
    let secure = settings.secure_heap.then(|| (SECURE_HEAP_VARIABLE, "1".into()));
    secure.into_iter().collect()
}

/// The settings: the file, with what the command line says on top.
pub fn settings(args: &EngineArgs) -> Result<Settings> {
    let mut settings = match &args.config {
        None => Settings::default(),
        Some(path) => read_settings(path)?,
    };
    if let Some(fast) = args.fast {
        settings.fast = fast;
    }
    if let Some(sampler) = args.sampler {
        settings.sampler = sampler.into();
    }
    if let Some(machine) = &args.machine {
        // The file's corrections are for another machine.
        settings.machine = machine.as_str().into();
    }
    settings.secure_heap |= args.secure_heap;
    apply_policy(&mut settings, args);
    settings.check()?;
    Ok(settings)
}

fn apply_policy(settings: &mut Settings, args: &EngineArgs) {
    let policy = &mut settings.policy;
    policy.prioritise = args.prioritise.clone().unwrap_or(policy.prioritise.clone());
    policy.trigger = args.trigger.clone().unwrap_or(policy.trigger.clone());
    policy.enforce = args.enforce.clone().unwrap_or(policy.enforce.clone());
    policy.gate = args.gate.clone().unwrap_or(policy.gate.clone());
    if let Some(tick) = args.tick {
        policy.tick_ms = whole_ms(tick.0);
    }
}

impl Engine {
    /// Gives the daemon what the command line says of vregions.
    pub fn with_vregions(mut self, args: &EngineArgs, privilege: &mut Privilege) -> Result<Engine> {
        self.config.pools.clone_from(&args.pool);
        if args.backing == BackingArg::Vmem {
            self.config.backing = Backing::Vmem;
            if !self.parts.mover.is_modelled() {
                self.parts.mover = privilege.mover(true)?;
            }
        }
        Ok(self)
    }
}

/// Reads a configuration file; errors name it, the line and the column.
pub fn read_settings(path: &Path) -> Result<Settings> {
    let text = read_bounded(path)
        .with_context(|| format!("cannot read the configuration {}", path.display()))?;
    Settings::from_toml(&text).with_context(|| format!("in the configuration {}", path.display()))
}

/// A text file of the user's; a device without end is refused. Pipes, as of `<(...)`, are read.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = std::fs::File::open(path)?.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > TEXT_BYTES_MAX {
        let what = format!("it has more than {} MiB", TEXT_BYTES_MAX >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

/// Opens everything the settings ask for.
pub fn engine(settings: &Settings, privilege: &mut Privilege) -> Result<Engine> {
    open(settings, None, privilege)
}

/// The same, for a recording, which moves nothing.
pub fn recording_engine(settings: &Settings, record: RecorderConfig) -> Result<Engine> {
    let mut settings = settings.clone();
    settings.policy.trigger = Trigger::Never;
    settings.sampling.dirtied = true;
    // The resolution of times in a profile is that of the programs' clock, which every drain sets.
    settings.daemon.poll_max = settings.daemon.poll_max.min(RECORD_CLOCK);
    settings.daemon.poll_min = settings.daemon.poll_min.min(RECORD_CLOCK);
    open(&settings, Some(record), &mut Privilege::Own)
}

fn open(
    settings: &Settings,
    record: Option<RecorderConfig>,
    privilege: &mut Privilege,
) -> Result<Engine> {
    if !settings.budgets.is_empty() {
        bail!("[[budget]] is of OS pages: use it with attach or run --by pages");
    }
    let symbols = privilege.symbols()?;
    let config = DaemonConfig { record, symbols, ..DaemonConfig::new(settings)? };
    let mut remarks = Vec::new();
    let machine = machine(settings, &mut remarks)?;
    let is_here = settings.machine.name.is_empty() && machine.tiers().len() > 1;
    // Nothing moves where a profile is made: there is nothing to model.
    let real = is_here || config.record.is_some();
    let machine = match settings.machine.name.as_str() {
        "" if !real => {
            remarks.push(format!(
                "this machine has one tier of memory: moves are modelled on \
                 {DEFAULT_MODELLED_MACHINE}; --machine names another"
            ));
            machine.modelled(&described(DEFAULT_MODELLED_MACHINE)?)
        }
        _ => machine,
    };
    let mover: Box<dyn Mover + Send> = if real {
        privilege.mover(false)?
    } else {
        Box::new(ModelledMover::new(machine.clone(), first_touch(&machine, settings.fast)))
    };
    let sampler = sampler(settings, privilege, &mut remarks)?;
    let parts = Parts { machine, sampler, mover, identity: privilege.identity()? };
    Ok(Engine { config, parts, remarks, environment: heap_environment(settings) })
}

/// Without a sampler, objects are tracked only; one that was requested by name must work.
fn sampler(
    settings: &Settings,
    privilege: &mut Privilege,
    remarks: &mut Vec<String>,
) -> Result<Option<Box<dyn Sampler>>> {
    match privilege.sampler(settings.sampler, &settings.sampling) {
        Ok(sampler) => Ok(Some(sampler)),
        Err(error) if matches!(settings.sampler, Kind::Auto | Kind::None) => {
            remarks.push(format!("{UNOBSERVED}: {error}"));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The machine the user names, or this one as the kernel describes it; with the user's corrections.
pub fn machine(settings: &Settings, remarks: &mut Vec<String>) -> Result<Machine> {
    let mut machine = match settings.machine.name.as_str() {
        "" => {
            let (machine, problems) = Machine::discover(Path::new("/"))?;
            // A remedy that the configuration already follows is not shown.
            let said = |place: &str| {
                let mut nodes = settings.machine.overrides.nodes.iter();
                nodes.any(|node| node.kind.is_some() && format!("node {}", node.id) == place)
            };
            let problems = problems.into_iter().filter(|problem| !said(&problem.place));
            remarks.extend(problems.map(|p| format!("{}: {}; {}", p.place, p.what, p.remedy)));
            machine
        }
        name => described(name)?,
    };
    let applied = machine.apply(&settings.machine.overrides);
    applied.context("in [[machine.node]] of the configuration")?;
    Ok(machine)
}

/// A machine from a file, or a built-in one.
pub fn described(name: &str) -> Result<Machine> {
    if let Some(machine) = Machine::builtin(name) {
        return Ok(machine?);
    }
    let text = match read_bounded(Path::new(name)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("no machine description {name}; built in are {}", BUILTIN_NAMES.join(", "))
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read the machine {name}"));
        }
    };
    Machine::from_toml(&text).with_context(|| format!("in the machine {name}"))
}

/// First touch on a modelled machine: the best tier up to the budget, then the next ones.
fn first_touch(machine: &Machine, fast: Limit) -> Vec<(tiercel_machine::NodeId, u64)> {
    let tiers = machine.tiers();
    let nodes = tiers.iter().enumerate().flat_map(|(rank, tier)| {
        let nodes = tier.nodes.iter().filter_map(|id| machine.node(*id));
        nodes.map(move |node| (node.id, tier_limit(rank, node.capacity_bytes, fast)))
    });
    nodes.collect()
}

/// Bytes of a node that the budget admits.
fn tier_limit(rank: usize, capacity_bytes: u64, fast: Limit) -> u64 {
    match fast {
        Limit::Bytes(bytes) if rank == 0 => bytes.min(capacity_bytes),
        _ => capacity_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_model_comes_with_tiercel() {
        assert!(Machine::builtin(DEFAULT_MODELLED_MACHINE).is_some());
    }
}
