//! Configuration of a daemon: the TOML file, and the checked settings it becomes.
//! In: text. Out: [`Settings`], [`DaemonConfig`]. Reads no configuration file itself.
//!
//! Unknown keys are refused with line and column: a misspelt setting that is silently ignored is
//! worse than none.

use crate::config_keys::commented;
use crate::net::socket_dir::{Access, DAEMON_NAME, usual_directory};
use crate::pages::{BUDGETS_MAX, CgroupBudget, WEIGHT_MAX, directory};
use crate::plan::choice::PlanChoice;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tiercel_machine::number::whole_ms;
use tiercel_machine::{MachineChoice, TimeSpan};
use tiercel_policy::Limit;
use tiercel_policy::pages::PagesConfig;
use tiercel_sampler::{Method, Sampler};
use tiercel_wire::Terms;

/// Longest configuration file, bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// A configuration file. Every key may be left out; [`Settings::default`] holds the defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Budget of the best tier for all tracked processes: `"25%"` of their peak, `"8 GiB"`,
    /// `"all"`.
    pub fast: Limit,
    /// Which sampler.
    pub sampler: tiercel_sampler::Kind,
    /// A machine description to model moves on: a file, or a built-in name. Empty: this machine.
    /// `[[machine.node]]` entries correct what is known of its nodes.
    pub machine: MachineChoice,
    /// Programs end, as with glibc, at a double free and other frees that would corrupt the heap.
    pub secure_heap: bool,
    /// `tiercel run` keeps what it learned of a program for its next run, and begins with it.
    pub learn: bool,
    /// The policy's four routines and its gate.
    pub policy: tiercel_policy::Config,
    /// How samples are taken.
    pub sampling: tiercel_sampler::Config,
    /// What is kept of objects.
    pub objects: Objects,
    /// How OS pages are tiered that no object names.
    pub pages: PagesConfig,
    /// The daemon itself.
    pub daemon: Limits,
    /// Budgets of control groups, of what is tiered by OS page: `cgroup` and `fast` each.
    #[serde(rename = "budget", skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<CgroupBudget>,
}

/// What is kept of objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Objects {
    /// Larger objects are tiered in pieces of at most this size (MAT 3.2.2); a number or
    /// `"64 MiB"`. A piece has at most a sixteenth of the budget.
    #[serde(with = "tiercel_machine::bytes")]
    pub extent: u64,
    /// But at least this size, and at least 2 MiB where the kernel uses huge OS pages unasked. The
    /// same as `extent`: all pieces have that size, as in MAT.
    #[serde(with = "tiercel_machine::bytes")]
    pub finest: u64,
    /// Most extents of one process.
    pub per_process_max: u32,
    /// Most extents altogether.
    pub max: u32,
}

/// Limits and pace of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most processes at once.
    pub clients_max: usize,
    /// Shortest time between two drains of the rings, while they fill.
    pub poll_min: TimeSpan,
    /// Longest time between two drains, while they do not.
    pub poll_max: TimeSpan,
    /// A process is hosted from when it has allocated so much; a number or `"256 KiB"`. 0: from its
    /// start.
    #[serde(with = "tiercel_machine::bytes")]
    pub attach_from: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            fast: Limit::default(),
            sampler: tiercel_sampler::Kind::Auto,
            machine: MachineChoice::default(),
            secure_heap: false,
            learn: true,
            policy: tiercel_policy::Config::default(),
            sampling: tiercel_sampler::Config::default(),
            objects: Objects::default(),
            pages: PagesConfig::default(),
            daemon: Limits::default(),
            budgets: Vec::new(),
        }
    }
}

impl Default for Objects {
    fn default() -> Objects {
        let ledger = tiercel_ledger::Config::default();
        Objects {
            extent: ledger.extent_bytes,
            finest: ledger.finest_bytes,
            per_process_max: ledger.process_extents_max,
            max: ledger.extents_max,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        let ms = |ms| TimeSpan(Duration::from_millis(ms));
        // A ring of 4096 records fills in 4 ms at a million records a second and thread, which take
        // a tenth of a CPU to follow; 100 ms are ten wake-ups a second, a few microseconds each.
        //
        // 256 KiB: true, ls or a shell that starts a program allocate less; what matters to
        // placement allocates more at once.
        Limits { clients_max: 4096, poll_min: ms(4), poll_max: ms(100), attach_from: 256 << 10 }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, an unknown key, or a wrong value; the text shows line and column.
    #[error("{0}")]
    Text(#[from] toml::de::Error),
    /// Too long to be a configuration.
    #[error("{0} bytes are too many for a configuration; at most {TEXT_BYTES_MAX} are read")]
    TooLong(usize),
    /// The policy refused its settings.
    #[error("{0}")]
    Policy(#[from] tiercel_policy::ConfigError),
    /// The ledger refused its settings.
    #[error("objects: {0}")]
    Ledger(#[from] tiercel_ledger::ConfigError),
    /// A setting of the daemon.
    #[error("{name} = {value}: {want}")]
    Value {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        want: &'static str,
    },
}

impl Settings {
    /// Reads a configuration file's text. Never panics, whatever the text.
    pub fn from_toml(text: &str) -> Result<Settings, ConfigError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ConfigError::TooLong(text.len()));
        }
        let settings: Settings = toml::from_str(text)?;
        settings.check()?;
        Ok(settings)
    }

    /// The file that says the same.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("settings are plain data that TOML can express")
    }

    /// The same file with a comment above each key that says what it means.
    pub fn to_commented_toml(&self) -> String {
        commented(&self.to_toml())
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.policy.check()?;
        self.pages.check()?;
        self.ledger().check()?;
        let wrong = |name, value: String, want| Err(ConfigError::Value { name, value, want });
        let Limits { clients_max, poll_min, poll_max, .. } = &self.daemon;
        if !(1..=tiercel_ledger::PROCESSES_MAX).contains(clients_max) {
            let want = "must be from 1 to 65535";
            return wrong("daemon.clients_max", clients_max.to_string(), want);
        }
        if poll_min.0 < Duration::from_millis(1) || poll_min > poll_max {
            let want = "must be at least 1ms and at most poll_max";
            return wrong("daemon.poll_min", poll_min.to_string(), want);
        }
        if poll_max.0 > Duration::from_secs(10) {
            return wrong("daemon.poll_max", poll_max.to_string(), "must be at most 10s");
        }
        self.check_budgets()?;
        // 10 ms are for modelled machines, where a program's whole run lasts seconds.
        if !(10..=3_600_000).contains(&self.policy.tick_ms) {
            let want = "must be from 10 ms to an hour";
            return wrong("policy.tick_ms", self.policy.tick_ms.to_string(), want);
        }
        Ok(())
    }

    fn check_budgets(&self) -> Result<(), ConfigError> {
        let wrong = |name, value: String, want| Err(ConfigError::Value { name, value, want });
        let groups: BTreeSet<PathBuf> =
            self.budgets.iter().map(|one| directory(&one.cgroup)).collect();
        if groups.len() < self.budgets.len() || groups.len() > BUDGETS_MAX {
            let want = "each control group may have one budget, and at most 63 may";
            return wrong("budget", format!("{} tables", self.budgets.len()), want);
        }
        for CgroupBudget { weight, guarantee, .. } in &self.budgets {
            if !(0.0..=WEIGHT_MAX).contains(weight) {
                return wrong("budget.weight", weight.to_string(), "must be from 0 to 10000");
            }
            if *guarantee == Some(Limit::Capacity) {
                let want = "must be a size or a share: others could never get anything";
                return wrong("budget.guarantee", "all".to_owned(), want);
            }
        }
        Ok(())
    }

    /// The ledger's settings.
    fn ledger(&self) -> tiercel_ledger::Config {
        let mut ledger = tiercel_ledger::Config {
            extent_bytes: self.objects.extent,
            finest_bytes: self.objects.finest,
            process_extents_max: self.objects.per_process_max,
            extents_max: self.objects.max,
            ..tiercel_ledger::Config::default()
        };
        self.policy.configure(&mut ledger);
        ledger
    }
}

/// The settings of a [`crate::Daemon`].
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Folder of its sockets.
    pub directory: PathBuf,
    /// Name of its sockets in the folder.
    pub name: String,
    /// Whose processes may attach.
    pub access: Access,
    /// Budget of the best tier.
    pub fast: Limit,
    /// Time between ticks, milliseconds.
    pub tick_ms: u64,
    /// The first ticks are as short as this, milliseconds; 0: all are equally long.
    pub first_tick_ms: u64,
    /// Most processes at once.
    pub clients_max: usize,
    /// Shortest time between two drains, milliseconds.
    pub poll_min_ms: u64,
    /// Longest time between two drains, milliseconds.
    pub poll_max_ms: u64,
    /// What a process allocates before it attaches, bytes.
    pub attach_bytes: u64,
    /// The ledger's settings.
    pub ledger: tiercel_ledger::Config,
    /// The policy's settings.
    pub policy: tiercel_policy::Config,
    /// Record a profile; then births are left to the kernel.
    pub record: Option<tiercel_profile::RecorderConfig>,
    /// The plan to follow, if any.
    pub plan: Option<PlanChoice>,
    /// Pools of memory for programs that place it themselves.
    pub pools: Vec<tiercel_pool::Capacity>,
    /// Gather what the next run of the program should know.
    pub learn: bool,
    /// Place memory that no object names as well.
    pub all_memory: bool,
    /// What the heap of programs is made of.
    pub backing: tiercel_wire::Backing,
    /// Which process reads the symbols of programs.
    pub symbols: tiercel_symbolize::Reader,
}

impl DaemonConfig {
    /// The checked settings, at the usual machine-wide place.
    pub fn new(settings: &Settings) -> Result<DaemonConfig, ConfigError> {
        settings.check()?;
        let mut ledger = settings.ledger();
        if uses_huge() {
            ledger.finest_bytes = ledger.finest_bytes.max(HUGE_OS_PAGE);
        }
        Ok(DaemonConfig {
            directory: usual_directory(),
            name: DAEMON_NAME.to_owned(),
            access: Access::Owner,
            fast: settings.fast,
            tick_ms: settings.policy.tick_ms,
            first_tick_ms: settings.policy.first_tick_ms,
            clients_max: settings.daemon.clients_max,
            poll_min_ms: whole_ms(settings.daemon.poll_min.0),
            poll_max_ms: whole_ms(settings.daemon.poll_max.0),
            attach_bytes: settings.daemon.attach_from,
            ledger,
            policy: settings.policy.clone(),
            record: None,
            plan: None,
            pools: Vec::new(),
            learn: false,
            all_memory: false,
            backing: tiercel_wire::Backing::Kernel,
            symbols: tiercel_symbolize::Reader::default(),
        })
    }
}

/// A process that allocates seldom attaches at its first birth so long after its start. Chosen, not
/// measured: longer than most processes of a build's scripts live, and shorter than a tick.
const ATTACH_MS: u32 = 50;

/// Userfaultfds that track the writes of one process.
const USERFAULTFDS: u32 = 2;

impl DaemonConfig {
    /// When processes attach. A profile and a plan are of whole runs, and the heap of a program can
    /// consist of vregions only from its start.
    pub(crate) fn terms(&self, sampler: Option<&dyn Sampler>) -> Terms {
        let scans = sampler.is_some_and(|sampler| sampler.method() == Method::PageTables);
        let is_planned = self.plan.as_ref().is_some_and(|plan| !plan.is_prior());
        let is_whole = self.record.is_some() || is_planned;
        let is_early = is_whole || self.backing != tiercel_wire::Backing::Kernel;
        Terms {
            attach_bytes: if is_early { 0 } else { self.attach_bytes },
            attach_ms: ATTACH_MS,
            userfaultfds: if scans { USERFAULTFDS } else { 0 },
            is_counted: self.access == Access::Owner,
        }
    }
}

/// Bytes of a huge OS page: a smaller piece could not be moved without splitting it.
const HUGE_OS_PAGE: u64 = 2 << 20;

/// Whether the kernel uses huge OS pages without a request by the program.
fn uses_huge() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| text.contains("[always]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expect: &str) {
        let got = match Settings::from_toml(text) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(got.contains(expect), "{text}\n got: {got}\n expect: {expect}");
    }

    #[test]
    fn files_that_are_accepted() {
        check("", "accepted");
        check("fast = \"25%\"\nsampler = \"probe\"\n", "accepted");
        check("[policy]\nprioritise = \"lru\"\ntrigger = \"allocation:bytes=1GiB\"\n", "accepted");
        check("[policy]\ntick_ms = 500\n[objects]\nextent = \"2 MiB\"\n", "accepted");
        check("[daemon]\npoll_min = \"5ms\"\npoll_max = \"50ms\"\n", "accepted");
        check("sampling = { cpu-budget = 0.02, ring_bytes = 65536 }\n", "accepted");
        check("machine = \"spr-cxl\"\n", "accepted");
        check("[[budget]]\ncgroup = \"/a\"\nfast = \"8 GiB\"\n", "accepted");
        let all = "[[budget]]\ncgroup = \"/a\"\nfast = \"all\"\n";
        check(&format!("{all}guarantee = \"4 GiB\"\nweight = 2.5\n"), "accepted");
        check("[[machine.node]]\nid = 1\nkind = \"cxl\"\ncapacity = \"8 GiB\"\n", "accepted");
        check("[machine]\nname = \"spr-cxl\"\n[[machine.node]]\nid = 0\ntier = 1\n", "accepted");
    }

    #[test]
    fn refusals_name_the_place() {
        check("fats = \"25%\"", "line 1, column 1");
        check("fast = \"25%\"\n[policy]\nprioritize = \"lru\"\n", "line 3, column 1");
        check("[daemon]\npoll_min = \"5 parsecs\"\n", "line 2, column 12");
        check("fast = \"125%\"", "want bytes");
        check("sampler = \"psychic\"", "unknown variant");
        check("[daemon]\nclients_max = 0", "daemon.clients_max = 0");
        check("[daemon]\npoll_min = \"1s\"", "at most poll_max");
        check("[objects]\nextent = 5", "extent_bytes");
        check("[policy]\ntick_ms = 0", "tick_ms");
        check("[[machine.node]]\nid = 1\nspeed = 3\n", "line 3, column 1");
        check("[machine]\nnames = \"x\"\n", "line 2, column 1");
        check("[[machine.nodes]]\nid = 1\n", "line 1, column 11");
        check("[[machine.node]]\nkind = \"cxl\"\n", "missing field `id`");
        check("[[budget]]\ncgroup = \"/a\"\n", "missing field `fast`");
        let twice = "[[budget]]\ncgroup = \"/a\"\nfast = \"all\"\n";
        check(&twice.repeat(2), "budget = 2 tables: each control group may have one");
        for weight in ["-1", "nan", "10001"] {
            check(&format!("{twice}weight = {weight}"), "budget.weight");
        }
        check(&format!("{twice}guarantee = \"all\""), "budget.guarantee = all: must be a size");
        check("machine = 5", "a machine's name");
        check(&" ".repeat(TEXT_BYTES_MAX + 1), "too many");
    }

    #[test]
    fn defaults_are_a_file_that_is_read_back() {
        let settings = Settings::default();
        assert_eq!(Settings::from_toml(&settings.to_toml()).unwrap(), settings);
        let text =
            "[machine]\nname = \"m\"\n[[machine.node]]\nid = 1\nfigures = { read_gb_s = 9.5 }";
        let budget = "[[budget]]\ncgroup = \"/a\"\nfast = \"25%\"\n";
        let settings = Settings::from_toml(&format!("{budget}{text}")).unwrap();
        assert_eq!(settings.budgets[0].fast, Limit::ShareOfPeak(0.25));
        assert_eq!(settings.machine.overrides.nodes[0].figures.read_gb_s, Some(9.5));
        assert_eq!(Settings::from_toml(&settings.to_toml()).unwrap(), settings);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "\\PC{0,200}") {
            let _ = Settings::from_toml(&text);
        }
    }
}
