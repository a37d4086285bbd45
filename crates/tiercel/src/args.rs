//! The command line.
//! In: arguments. Out: [`Args`]. Knows nothing of what the verbs do.

use crate::record_args::{SamplerArg, address};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tiercel_daemon::Capacity;
use tiercel_machine::{NodeId, TimeSpan};
use tiercel_policy::pages::Mode;
use tiercel_policy::{Enforce, Gate, Limit, Prioritise, Trigger};

/// The example of `tiercel -h`.
const EXAMPLE: &str = "Example: tiercel run --fast 25% -- redis-server --port 7777";

/// Keeps the data that costs a program the most time in its fastest memory, while it runs.
#[derive(Parser, Debug)]
#[command(name = "tiercel", version, propagate_version = true, disable_help_subcommand = true)]
#[command(after_help = EXAMPLE)]
#[command(after_long_help = format!("{EXAMPLE}\n\n{}", crate::exit::TABLE))]
pub struct Args {
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Run a program, track its objects and move them between memories
    #[command(after_help = "Examples:
  tiercel run -- ./app
  tiercel run --fast 25% --prioritise lru --trigger allocation=1GiB -- ./app data.bin
  tiercel run --plan app.plan -- ./app data.bin
  tiercel run --by pages --fast 8GiB -- java -jar app.jar
  tiercel run --machine spr-cxl --json -- python3 script.py")]
    Run(RunArgs),
    /// Run a program and record its objects and accesses as a profile
    #[command(after_help = "Examples:
  tiercel record -- ./app
  tiercel record -o app.profile --sampler perf -- ./app data.bin")]
    Record(crate::record_args::RecordArgs),
    /// Compile C as clang 19 does, with a check before each memory access
    #[command(
        after_help = "TIERCEL_CC=marks also marks loops as phases; TIERCEL_CC=apply compiles in
what the plan TIERCEL_PLAN states; TIERCEL_CC=off adds nothing. Links named tiercel-cc and
tiercel-c++ work, too.

Examples:
  tiercel cc -O2 -o app app.c
  make CC='tiercel cc'
  TIERCEL_CC=apply TIERCEL_PLAN=app.plan make CC='tiercel cc'
  ./configure CC='tiercel cc' CXX='tiercel c++'"
    )]
    Cc(crate::cc::CompileArgs),
    /// Compile C++ as clang++ 19 does, with a check before each memory access
    #[command(name = "c++", after_help = "Example: tiercel c++ -O2 -o app app.cc")]
    Cxx(crate::cc::CompileArgs),
    /// Compile Fortran as flang 19 does, with a check before each memory access
    #[command(after_help = "Example: tiercel fc -O2 -o app app.f90")]
    Fc(crate::cc::CompileArgs),
    /// Show, compare, merge and export profiles
    #[command(after_help = "Example: tiercel profile show app.profile")]
    Profile(crate::profile_args::ProfileArgs),
    /// Show or forget what runs of a program learned for its next runs
    #[command(after_help = "Examples:
  tiercel learned list
  tiercel learned show ./app")]
    Learned(crate::learned_args::LearnedArgs),
    /// Make a plan from a profile: which memory each object is born in and moves to
    #[command(after_help = "Examples:
  tiercel plan app.profile --fast 25%
  tiercel plan app.profile --machine xeonmax-hbm --strategy phased -o app.plan
  tiercel plan app.profile --explain make_grid")]
    Plan(crate::plan_args::PlanArgs),
    /// Predict how much slower a recorded program is with less fast memory, or on other machines
    #[command(after_help = "Examples:
  tiercel whatif app.profile
  tiercel whatif app.profile --machine spr-cxl --machine xeonmax-hbm --svg app.svg")]
    Whatif(crate::plan_args::WhatifArgs),
    /// Show which objects of a recorded program were accessed when
    #[command(after_help = "Example: tiercel heat app.profile --rows 40")]
    Heat(crate::heat::HeatArgs),
    /// Show how much memory a recorded program used in each window of time
    #[command(after_help = "Example: tiercel wss app.profile --window 100ms")]
    Wss(crate::wss::WssArgs),
    /// Write a report on a profile and a plan as one HTML file
    #[command(after_help = "Examples:
  tiercel report app.profile -o app.html
  tiercel report app.profile --plan app.plan --machine spr-cxl -o app.html")]
    Report(crate::plan_args::ReportArgs),
    /// Replay streams of births and accesses through policies, in a model of a machine
    #[command(after_help = "Examples:
  tiercel replay --streams tuned --policy tiercel,never --fast 25%
  tiercel replay --streams moving,churn/3 --policy mat:apb:time,clock-dwf --seeds 3
  tiercel replay --profile app.profile --json")]
    Replay(crate::replay_args::ReplayArgs),
    /// Tier running processes by OS page: nothing is loaded into them, and nothing stays behind
    #[command(after_help = "Examples:
  tiercel attach --pid 4711
  tiercel attach --cgroup /system.slice/redis-server.service
  tiercel attach --pid 4711 --mode opm-bd --for 60s --json")]
    Attach(AttachArgs),
    /// Serve all programs that are started with its socket
    #[command(after_help = "Examples:
  tiercel daemon --fast 8GiB
  tiercel daemon --env      # variables that make a program attach
  tiercel daemon --stop")]
    Daemon(DaemonArgs),
    /// Show objects of running programs by heat, size, site or node
    #[command(after_help = "Examples:
  tiercel top
  tiercel top --once --by size --limit 10
  tiercel top --processes --once
While it runs, the key ? explains keys and columns.")]
    Top(TopArgs),
    /// Show recent moves and their reasons, or why an OS page is where it is
    #[command(after_help = "Examples:
  tiercel why --limit 10
  tiercel why 0x7f3a12c45000 --pid 4711")]
    Why(WhyArgs),
    /// Show the figures of a running daemon, or change its budget
    #[command(after_help = "Examples:
  tiercel status --json
  tiercel status --set-fast 4GiB
  tiercel status --metrics")]
    Status(StatusArgs),
    /// Show this machine's memories, their tiers and figures
    #[command(after_help = "Examples:
  tiercel topo
  tiercel topo --machine spr-cxl --json")]
    Topo(TopoArgs),
    /// Check which features work on this machine, and how to enable the others
    #[command(after_help = "Example: tiercel doctor")]
    Doctor(DoctorArgs),
    /// Run programs in a guest that has the memory nodes of another machine
    #[command(after_help = "Example: tiercel lab run --machine spr-cxl -- numactl -H")]
    Lab(crate::lab::LabArgs),
    /// Check a configuration file, or print the defaults
    #[command(after_help = "Examples:
  tiercel config > tiercel.toml
  tiercel config --check tiercel.toml")]
    Config(ConfigArgs),
    /// Do what takes privilege for a daemon of all users: a child of `daemon --all-users`
    #[command(hide = true)]
    Broker,
    /// Answer for symbols of files, on standard input: a child of the other commands
    #[command(hide = true)]
    Symbolize,
    /// Print completions for a shell
    #[command(after_help = "Example: tiercel completions bash > /etc/bash_completion.d/tiercel")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page
    #[command(after_help = "Examples:
  tiercel man run | man -l -
  tiercel man lab compare | man -l -
  tiercel man --all /usr/local/share/man/man1")]
    Man(ManArgs),
}

#[derive(ClapArgs, Debug)]
pub struct ManArgs {
    /// The verb, and one of its own; without one, the page of tiercel itself
    pub verb: Vec<String>,
    /// Write the pages of all verbs to files in this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "verb")]
    pub all: Option<PathBuf>,
}

/// Options of both `run` and `daemon`. Each overrides the configuration file.
#[derive(ClapArgs, Debug, Default)]
pub struct EngineArgs {
    /// Budget of the fastest memory: a share of the programs' peak (25%), a size (8GiB), or all
    #[arg(long, value_name = "SHARE|SIZE")]
    pub fast: Option<Limit>,
    /// How objects are ranked for fast memory: fifo, lru, apb, cpb, first-come, or expression:TEXT
    #[arg(long, value_name = "ROUTINE")]
    pub prioritise: Option<Prioritise>,
    /// When to decide: time=TICKS, llcmpi=CHANGE, allocation=SIZE, or never
    #[arg(long, value_name = "ROUTINE", value_parser = trigger)]
    pub trigger: Option<Trigger>,
    /// How tiers are filled: fill=PERCENT
    #[arg(long, value_name = "ROUTINE", value_parser = enforce)]
    pub enforce: Option<Enforce>,
    /// What is in front of the mover: shadow=LOSS, or none
    #[arg(long, value_name = "ROUTINE", value_parser = gate)]
    pub gate: Option<Gate>,
    /// Time between two ticks
    #[arg(long, value_name = "TIME")]
    pub tick: Option<TimeSpan>,
    /// What observes accesses
    #[arg(long, value_name = "KIND")]
    pub sampler: Option<SamplerArg>,
    /// Model moves on this machine instead: a description's file, or a built-in name
    #[arg(long, value_name = "FILE|NAME")]
    pub machine: Option<String>,
    /// Memory that backs the heap of programs (docs/pools.md)
    #[arg(long, value_name = "KIND", default_value = "kernel")]
    pub backing: BackingArg,
    /// End programs, as glibc does, at a double free and at other frees that would corrupt the heap
    #[arg(long)]
    pub secure_heap: bool,
    /// Pool of a node's memory for programs that place it themselves (docs/pools.md); repeatable
    #[arg(long, value_name = "NODE=SIZE[:FOLDER]", value_parser = pool)]
    pub pool: Vec<Capacity>,
    /// Configuration file; `tiercel config` prints one with the defaults
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Memory that backs a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackingArg {
    /// Ordinary memory, which the kernel moves
    #[default]
    Kernel,
    /// Memory that the program itself moves while it writes
    Vmem,
}

/// What is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ByArg {
    /// Objects that the program allocates
    #[default]
    Objects,
    /// OS pages of all its memory, as tiercel attach does
    Pages,
    /// Objects, and all other private memory of the program beside them
    Both,
}

#[derive(ClapArgs, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    /// What is placed; by OS page nothing is loaded into the program (docs/pages.md)
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub by: ByArg,
    /// With --by pages: what happens when the memory near an accessor is full (see attach)
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Allocate and move objects according to this plan
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Let the online policy place objects that the plan does not cover, and all objects once the
    /// plan falls short of its prediction
    #[arg(long, requires = "plan")]
    pub adapt: bool,
    /// Neither use what earlier runs of the program learned, nor keep what this one learns
    #[arg(long)]
    pub no_learn: bool,
    /// Print the whole summary. Without it three lines are printed, and none where standard error
    /// is no terminal
    #[arg(long, short)]
    pub verbose: bool,
    /// Rows of the whole summary's table, which is printed then; 10 by default
    #[arg(long, value_name = "ROWS")]
    pub rows: Option<usize>,
    /// Print the whole summary as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the whole summary to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print no summary
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

#[derive(ClapArgs, Debug)]
pub struct DaemonArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Folder of the sockets
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
    /// Serve programs of all users (as root)
    #[arg(long)]
    pub all_users: bool,
    /// Stop the running daemon
    #[arg(long, conflicts_with_all = ["env", "all_users"])]
    pub stop: bool,
    /// Print the variables that make a program attach
    #[arg(long)]
    pub env: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// The daemon to connect to.
#[derive(ClapArgs, Debug, Default)]
pub struct PeerArgs {
    /// Control socket; default: the socket of the only running daemon or run
    #[arg(long, value_name = "SOCKET", conflicts_with = "pid")]
    pub socket: Option<PathBuf>,
    /// The run that hosts this process, or is it; with an address, the process that has it
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
}

#[derive(ClapArgs, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    pub peer: PeerArgs,
    /// Sort order of sites
    #[arg(long, value_enum, default_value_t = OrderArg::Heat)]
    pub by: OrderArg,
    /// Show processes instead of sites, those with most memory first
    #[arg(long)]
    pub processes: bool,
    /// Rows
    #[arg(long, default_value_t = 20)]
    pub limit: usize,
    /// Print one table and exit
    #[arg(long)]
    pub once: bool,
    /// Print as JSON and exit
    #[arg(long)]
    pub json: bool,
}

/// `tiercel attach`.
#[derive(ClapArgs, Debug)]
pub struct AttachArgs {
    /// The process; those that it starts are tiered with it
    #[arg(long, value_name = "N", required_unless_present = "cgroup", conflicts_with = "cgroup")]
    pub pid: Option<u32>,
    /// All processes of a control group and of those below it: a directory, or its path below
    /// /sys/fs/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// What happens when the memory near an accessor is full: benefit, cpm, cpmx, opm, opmx, opm-bd
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Budget of the fastest memory: a share of the process's memory (25%), a size (8GiB), or all
    #[arg(long, value_name = "SHARE|SIZE")]
    pub fast: Option<Limit>,
    /// How accesses are observed; auto takes hint before the others
    #[arg(long, value_enum)]
    pub sampler: Option<SamplerArg>,
    /// Detach after this time; without it when the process ends, or on Ctrl-C
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<TimeSpan>,
    /// Settings as printed by `tiercel config`; the table [pages] is about this
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Orders of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// Hottest first
    Heat,
    /// Largest first
    Size,
    /// By site
    Site,
    /// By node
    Node,
}

#[derive(ClapArgs, Debug)]
pub struct WhyArgs {
    /// An address, in hexadecimal, of a process that is tiered by OS page
    #[arg(value_name = "ADDRESS", value_parser = address)]
    pub address: Option<u64>,
    #[command(flatten)]
    pub peer: PeerArgs,
    /// Rows
    #[arg(long, default_value_t = 20)]
    pub limit: usize,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub peer: PeerArgs,
    /// Change the budget of the fastest memory from the next tick on
    #[arg(long, value_name = "SHARE|SIZE")]
    pub set_fast: Option<Limit>,
    /// Print as Prometheus text
    #[arg(long, conflicts_with = "json")]
    pub metrics: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct TopoArgs {
    /// Describe this machine instead: a description's file, or a built-in name
    #[arg(long, value_name = "FILE|NAME")]
    pub machine: Option<String>,
    /// Read /sys and /proc below this folder
    #[arg(long, value_name = "FOLDER", default_value = "/", conflicts_with = "machine")]
    pub root: PathBuf,
    /// Print a machine description to start from
    #[arg(long, conflicts_with = "json")]
    pub toml: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct DoctorArgs {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct ConfigArgs {
    /// Check this file instead of printing the defaults
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

impl From<OrderArg> for tiercel_daemon::protocol::Order {
    fn from(arg: OrderArg) -> tiercel_daemon::protocol::Order {
        use tiercel_daemon::protocol::Order;
        match arg {
            OrderArg::Heat => Order::Heat,
            OrderArg::Size => Order::Size,
            OrderArg::Site => Order::Site,
            OrderArg::Node => Order::Node,
        }
    }
}

/// `allocation=1GiB` is short for `allocation:bytes=1GiB`, and so on.
fn trigger(text: &str) -> Result<Trigger, tiercel_policy::RoutineError> {
    main_option(text, &[("time", "ticks"), ("llcmpi", "threshold"), ("allocation", "bytes")])
        .parse()
}

/// `2=8GiB`, `2=8GiB:/mnt/pmem0`.
fn pool(text: &str) -> Result<Capacity, String> {
    let (node, size) = text.split_once('=').ok_or("want NODE=SIZE, as in 2=8GiB")?;
    let (size, folder) = size.split_once(':').map_or((size, None), |(a, b)| (a, Some(b.into())));
    let node = node.parse().map_err(|error| format!("the node `{node}`: {error}"))?;
    let bytes = tiercel_machine::parse_bytes(size).map_err(|error| error.to_string())?;
    Ok(Capacity { node: NodeId(node), bytes, folder })
}

/// `fill=90` is short for `fill:percent=90`.
fn enforce(text: &str) -> Result<Enforce, tiercel_policy::RoutineError> {
    main_option(text, &[("fill", "percent")]).parse()
}

/// `shadow=0.02` is short for `shadow:loss=0.02`.
fn gate(text: &str) -> Result<Gate, tiercel_policy::RoutineError> {
    let text = if text == "shadow" { "shadow:" } else { text };
    main_option(text, &[("shadow", "loss")]).parse()
}

fn main_option(text: &str, options: &[(&str, &str)]) -> String {
    if let Some((name, value)) = text.split_once('=')
        && let Some((_, option)) = options.iter().find(|(known, _)| *known == name)
    {
        return format!("{name}:{option}={value}");
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn a_pool_has_a_size_and_perhaps_a_folder() {
        let of = |folder: Option<&str>| {
            let (node, bytes) = (NodeId(2), 8 << 30);
            Ok(Capacity { node, bytes, folder: folder.map(Into::into) })
        };
        assert_eq!(pool("2=8GiB"), of(None));
        assert_eq!(pool("2=8GiB:/mnt/a:b"), of(Some("/mnt/a:b")));
        for wrong in ["2", "2=", "x=8GiB", "2=8GiBs", "2:/mnt=8GiB"] {
            assert!(pool(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_verb_has_an_example() {
        for verb in Args::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let name = verb.get_name();
            assert!(after.contains(&format!("tiercel {name}")), "{name} has no example");
        }
    }

    #[test]
    fn short_forms_of_routines() {
        assert_eq!(trigger("allocation=1GiB").unwrap(), trigger("allocation").unwrap());
        assert_eq!(trigger("time=5").unwrap(), Trigger::default());
        assert!(trigger("time=x").is_err());
        assert_eq!(enforce("fill=90").unwrap(), Enforce::default());
    }

    #[test]
    fn options_behind_the_program_are_its_own() {
        let args = ["tiercel", "run", "--fast", "25%", "ls", "--fast", "-l", "--", "x"];
        let Verb::Run(run) = Args::parse_from(args).verb else { panic!("not a run") };
        assert_eq!(run.program, ["ls", "--fast", "-l", "--", "x"]);
        assert_eq!(run.engine.fast, Some(Limit::ShareOfPeak(0.25)));
    }
}
