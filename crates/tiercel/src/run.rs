//! `tiercel run`: a program with the daemon in the parent.
//! In: [`RunArgs`]. Out: the program's own exit status, and a summary on standard error.
//! Knows nothing of how anything is decided.
//!
//! What can be wrong is found before the program starts; from then on the program comes first: the
//! daemon works on a thread of its own, and if it fails the program goes on.

use crate::args::{ByArg, RunArgs};
use crate::brief::{Around, brief, cost_ratio};
use crate::engine::{Engine, UNOBSERVED, engine, settings};
use crate::exit;
use crate::host::{Ending, Hosted, StartError, end_like};
use crate::learn::{Learner, Recalled, history, now_s};
use crate::privilege::{Privilege, symbol_reader};
use crate::program::{find, hindrance};
use crate::summary_file::SummaryFile;
use crate::terminal::{complain, json_of, note, prefixed, printable, reason};
use crate::{by_pages, library, show};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use tiercel_daemon::{
    Daemon, DaemonError, FinalReport, Handle, PlanChoice, PlanRole, PlanSummary, Settings,
};
use tiercel_machine::Machine;
use tiercel_plan::{Plan, read_plan};
use tiercel_policy::Limit;
use tiercel_sampler::Kind;
use tiercel_symbolize::Symbols;

/// Where the runtime finds the daemon.
const SOCKET_VARIABLE: &str = "TIERCEL_SOCKET";

/// Rows of the summary's table.
const ROWS: usize = 10;

type Running = JoinHandle<Result<FinalReport, DaemonError>>;

/// Runs the program; what it returns is the program's ending, or a refusal to start it.
pub fn run(args: &RunArgs) -> ExitCode {
    let output = match args.output.as_deref().map(SummaryFile::open).transpose() {
        Ok(output) => output,
        Err(error) => return refuse(&error),
    };
    let done = match args.by {
        ByArg::Objects | ByArg::Both => {
            start(args).map(|(started, past)| started.finish(args, &past, output))
        }
        ByArg::Pages => by_pages::run(args, output),
    };
    done.unwrap_or_else(|error| refuse(&error))
}

/// Reports why the program was not started.
pub fn refuse(error: &anyhow::Error) -> ExitCode {
    note(format_args!("tiercel: {}; the program was not started", reason(error)));
    match error.downcast_ref::<StartError>() {
        Some(start) => ExitCode::from(start.status()),
        None => ExitCode::from(exit::REFUSED),
    }
}

/// A program that runs, and its daemon.
pub struct Started {
    hosted: Hosted,
    daemon: Running,
    handle: Handle,
    remarks: Vec<String>,
    ratio: Option<f64>,
}

/// Earlier runs of the program.
#[derive(Default)]
struct Past {
    /// `None`: nothing is learned.
    learner: Option<Learner>,
    /// What this run began with, if anything.
    recalled: Option<Recalled>,
}

fn start(args: &RunArgs) -> Result<(Started, Past)> {
    if args.mode.is_some() {
        bail!("--mode is of OS pages: use it with --by pages");
    }
    let (engine, settings) = planned_engine(args)?;
    let mut engine = engine.with_vregions(&args.engine, &mut Privilege::Own)?;
    engine.config.all_memory = args.by == ByArg::Both;
    let past = recall(args, &settings, &mut engine);
    Ok((host_with_runtime(&args.program, engine)?, past))
}

/// Lets the engine begin with what earlier runs learned, and learn for the next.
fn recall(args: &RunArgs, settings: &Settings, engine: &mut Engine) -> Past {
    if args.no_learn || !settings.learn || engine.parts.machine.tiers().len() < 2 {
        return Past::default();
    }
    let Some(learner) = Learner::of(&args.program[0]) else { return Past::default() };
    engine.config.learn = true;
    let is_free = engine.config.plan.is_none();
    let recalled = is_free.then(|| learner.recall(engine, settings.fast)).flatten();
    Past { learner: Some(learner), recalled }
}

/// Starts the daemon, then the program with the runtime.
pub fn host_with_runtime(program: &[OsString], engine: Engine) -> Result<Started> {
    let library = library::find()?;
    if !library::can_be_preloaded(&library) {
        bail!("{} cannot be preloaded: its path has a space or a colon", library.display());
    }
    host(program, engine, &library)
}

/// The engine, with the plan if there is one. A defective plan is refused here.
fn planned_engine(args: &RunArgs) -> Result<(Engine, Settings)> {
    let mut settings = settings(&args.engine)?;
    let Some(path) = &args.plan else {
        return Ok((engine(&settings, &mut Privilege::Own)?, settings));
    };
    let plan = read_plan(path)?;
    if args.engine.fast.is_none() {
        settings.fast = Limit::Bytes(plan.fast_bytes());
    }
    // With one kind of memory the plan is executed on a modelled machine: the one it was made for.
    let builtin = Machine::builtin(&plan.machine.name).is_some();
    if settings.machine.name.is_empty()
        && builtin
        && Machine::discover(Path::new("/"))?.0.tiers().len() < 2
    {
        settings.machine = plan.machine.name.as_str().into();
    }
    let is_blind = !args.adapt && settings.sampler == Kind::Auto;
    if is_blind {
        settings.sampler = Kind::None; // no decision would use the samples
    }
    let mut engine = engine(&settings, &mut Privilege::Own)?;
    if is_blind {
        engine.remarks.retain(|remark| !remark.starts_with(UNOBSERVED));
    }
    if engine.parts.machine.tiers().len() < 2 {
        engine.remarks.push("this machine has one kind of memory: the plan changes nothing".into());
    }
    engine.remarks.extend(of_another_program(&plan, &args.program[0]));
    let plan = Arc::new(plan);
    // The process ends with the run, so a large plan is not freed piece by piece.
    std::mem::forget(Arc::clone(&plan));
    let role = PlanRole::Binding { adapt: args.adapt };
    engine.config.plan = Some(PlanChoice { plan, role });
    Ok((engine, settings))
}

/// A remark when the plan was made for another program.
fn of_another_program(plan: &Plan, program: &OsString) -> Option<String> {
    let path = std::env::var_os("PATH");
    let found = find(program, path.as_deref())?;
    let (ours, theirs) = (file_name(&found)?, file_name(Path::new(&plan.program.path))?);
    (ours != theirs).then(|| {
        format!(
            "the plan was made for {theirs}, this program is {ours}; sites are matched nevertheless"
        )
    })
}

fn file_name(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Starts the daemon, then the program with `library` in front of its own.
fn host(program: &[OsString], engine: Engine, library: &Path) -> Result<Started> {
    let Engine { mut config, parts, mut remarks, environment } = engine;
    let path = std::env::var_os("PATH");
    if let Some(found) = find(&program[0], path.as_deref())
        && let Some(hindrance) = hindrance(&found)
    {
        remarks.insert(0, hindrance.to_string());
    }
    // Concurrent runs of one user have sockets of their own.
    config.name = format!("run-{}", std::process::id());
    let ratio = cost_ratio(&parts.machine);
    let daemon = Daemon::new(config, parts)?;
    let users = std::env::var_os("LD_PRELOAD");
    let mut added: Vec<(&str, OsString)> = vec![
        ("LD_PRELOAD", library::preload(library, users.as_deref())),
        (SOCKET_VARIABLE, daemon.clients_path().into()),
    ];
    added.extend(environment);
    let handle = daemon.handle();
    let daemon = std::thread::Builder::new()
        .name("tiercel-daemon".into())
        .spawn(move || daemon.run())
        .context("cannot start the daemon's thread")?;
    match Hosted::start(program, &added) {
        Ok(hosted) => Ok(Started { hosted, daemon, handle, remarks, ratio }),
        Err(error) => {
            handle.stop();
            // No program attached, so there is no summary to show.
            let _ = daemon.join();
            Err(error.into())
        }
    }
}

impl Started {
    /// Waits for the program, then for the daemon, however either ends.
    pub fn wait(mut self) -> Ended {
        let ending = self.hosted.wait();
        self.handle.stop();
        let (mut remarks, ratio) = (self.remarks, self.ratio);
        let failure = match self.daemon.join() {
            Ok(Ok(final_report)) => {
                return Ended { ending, final_report: Some(final_report), remarks, ratio };
            }
            Ok(Err(error)) => format!(": {error}"),
            Err(_) => " by a panic, which is a defect".to_owned(),
        };
        remarks.push(format!("the daemon failed{failure}; the program went on without it"));
        Ended { ending, final_report: None, remarks, ratio }
    }

    fn finish(self, args: &RunArgs, past: &Past, output: Option<SummaryFile>) -> ExitCode {
        let mut ended = self.wait();
        ended.keep(past);
        let ending = match &ended.ending {
            Ok(ending) => *ending,
            Err(error) => {
                complain(error);
                return ExitCode::from(exit::REFUSED);
            }
        };
        if let Err(error) = report(args, past.recalled, output, &ended, ending) {
            complain(&error);
        }
        end_like(ending)
    }
}

/// A program that is done.
pub struct Ended {
    /// How it ended.
    pub ending: Result<Ending>,
    /// `None`: the daemon failed.
    pub final_report: Option<FinalReport>,
    /// For the user.
    pub remarks: Vec<String>,
    /// How many times as long as the fastest memory the slowest takes.
    ratio: Option<f64>,
}

impl Ended {
    /// Keeps what was learned for the next run.
    fn keep(&mut self, past: &Past) {
        let learned = self.final_report.as_mut().and_then(|report| report.learned.take());
        if let (Some(learner), Some(learned)) = (&past.learner, learned)
            && let Err(error) = learner.keep(learned)
        {
            self.remarks.push(format!("what this run learned is not kept: {error}"));
        }
    }
}

/// Writes the summary to the requested destination. It never changes the program's exit status.
fn report(
    args: &RunArgs,
    recalled: Option<Recalled>,
    output: Option<SummaryFile>,
    ended: &Ended,
    ending: Ending,
) -> Result<()> {
    let is_whole = args.json || args.verbose || args.rows.is_some() || output.is_some();
    // A defect of ours is stated in any case.
    let is_asked = is_whole || std::io::stderr().is_terminal() || ended.final_report.is_none();
    if args.quiet || !is_asked {
        return Ok(());
    }
    let mut symbols = Symbols::new(&symbol_reader());
    let text = match (args.json, is_whole) {
        (true, _) => json(ended, recalled, ending, &mut symbols)?,
        (_, true) => {
            let (report, remarks) = (ended.final_report.as_ref(), &ended.remarks);
            let learned = recalled.map(|recalled| learned_line(recalled, report));
            prefixed(&text(args, report, remarks, learned, &mut symbols))
        }
        (_, false) => prefixed(&short_text(args, recalled, ended, &mut symbols)),
    };
    match output {
        Some(output) => output.write(&text),
        None => Ok(std::io::stderr().write_all(text.as_bytes())?),
    }
}

fn json(
    ended: &Ended,
    recalled: Option<Recalled>,
    ending: Ending,
    symbols: &mut Symbols,
) -> Result<String> {
    let mut value = match &ended.final_report {
        Some(final_report) => show::named_json(final_report, symbols)?,
        None => serde_json::json!({}),
    };
    value["remarks"] = ended.remarks.as_slice().into();
    value["exit_status"] = ending.shell_status().into();
    if let Some(Recalled { runs, updated_s, sites, fast_share }) = recalled {
        value["recalled"] = serde_json::json!({
            "runs": runs,
            "updated_s": updated_s,
            "sites": sites,
            "fast_share": fast_share,
        });
    }
    Ok(json_of("run", &value)?)
}

/// The whole summary.
fn text(
    args: &RunArgs,
    final_report: Option<&FinalReport>,
    remarks: &[String],
    learned: Option<String>,
    symbols: &mut Symbols,
) -> String {
    let mut out = String::new();
    if let Some(final_report) = final_report {
        // The reason comes first.
        if final_report.summary.clients.attached == 0 {
            out.push_str(&remarked(remarks));
            out.push_str("no process attached: no objects were tracked\n");
        }
        let rows = args.rows.unwrap_or(ROWS);
        out.push_str(&show::final_report(final_report, symbols, rows));
    }
    out.extend(learned);
    if final_report.is_none_or(|report| report.summary.clients.attached > 0) {
        out.push_str(&remarked(remarks));
    }
    out
}

/// What the run began with, and what came of it.
fn learned_line(recalled: Recalled, report: Option<&FinalReport>) -> String {
    let Recalled { runs, updated_s, sites, .. } = recalled;
    let history = history(runs, updated_s, now_s());
    let mut line = format!("learned    births of {sites} sites, from {history}");
    if let Some(PlanSummary { matched, planned_bytes, remarks, .. }) =
        report.and_then(|report| report.summary.learned.as_ref())
    {
        let bytes = tiercel_machine::short_bytes(*planned_bytes);
        line.push_str(&format!("; {matched} were met, {bytes} born there"));
        remarks.iter().for_each(|remark| line.push_str(&format!("; {remark}")));
    }
    line + "\n"
}

/// Three lines, or the remarks where there are no figures; a line more of what was learned.
fn short_text(
    args: &RunArgs,
    recalled: Option<Recalled>,
    ended: &Ended,
    symbols: &mut Symbols,
) -> String {
    let Some(final_report) = &ended.final_report else { return remarked(&ended.remarks) };
    let words: Vec<String> =
        args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let around = Around {
        ratio: ended.ratio,
        remarks: &ended.remarks,
        program: printable(&words.join(" ")),
        has_plan: args.plan.is_some(),
    };
    let learned = recalled.map(|recalled| learned_line(recalled, Some(final_report)));
    brief(final_report, &around, symbols) + &learned.unwrap_or_default()
}

fn remarked(remarks: &[String]) -> String {
    remarks.iter().map(|remark| format!("remark     {remark}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use tiercel_daemon::Settings;
    use tiercel_sampler::{
        Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities,
        SamplerError,
    };
    use tiercel_wire::{Now, Sample};

    /// A sampler with a defect: the daemon's thread dies of it at its first tick.
    struct Failing;

    impl Sampler for Failing {
        fn kind(&self) -> Kind {
            Kind::Probe
        }

        fn method(&self) -> Method {
            Method::PageTables
        }

        fn attach(&mut self, _pid: u32) -> Result<(), SamplerError> {
            Ok(())
        }

        fn detach(&mut self, _pid: u32) {}

        fn watch(&mut self, _pid: u32, _ranges: &[Range<u64>]) {}

        fn drain(&mut self, _now: Now, _out: &mut Vec<Sample>) -> Drained {
            panic!("a defect, injected by a test");
        }

        fn counters(&mut self) -> Option<Counters> {
            None
        }

        fn capabilities(&self) -> SamplerCapabilities {
            let (source, text) = (String::new(), String::new());
            let (reads, writes) = (Granularity::Blind, Granularity::Blind);
            let (around, dirtied) = (false, false);
            SamplerCapabilities {
                reads,
                writes,
                latency: false,
                node: false,
                around,
                dirtied,
                counters: false,
                source,
                text,
            }
        }

        fn cost(&self) -> Cost {
            Cost::default()
        }
    }

    #[test]
    fn a_program_survives_the_death_of_its_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let sampler = Kind::None;
        let settings = Settings { machine: "spr-cxl".into(), sampler, ..Settings::default() };
        let mut engine = engine(&settings, &mut Privilege::Own).unwrap();
        engine.config.directory = folder.path().join("t");
        engine.config.tick_ms = 100;
        engine.parts.sampler = Some(Box::new(Failing));
        // It ends when the daemon's socket is gone, bounded: 9 says that it never went.
        let script = r#"i=0; while [ -S "$TIERCEL_SOCKET" ]; do
            i=$((i+1)); [ $i -lt 20000000 ] || exit 9; done; exit 7"#;
        let program: Vec<OsString> = ["sh", "-c", script].iter().map(OsString::from).collect();
        // Preloading what is loaded anyway changes nothing.
        let ended = host(&program, engine, Path::new("libc.so.6")).unwrap().wait();
        assert_eq!(ended.ending.unwrap(), Ending::Exited(7));
        assert!(ended.final_report.is_none());
        let said =
            ended.remarks.iter().any(|remark| remark.contains("by a panic, which is a defect"));
        assert!(said, "{:?}", ended.remarks);
    }
}
