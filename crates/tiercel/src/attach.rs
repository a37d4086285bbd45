//! `tiercel attach`: tiers running processes by OS page until they end or the user stops it.
//! In: [`AttachArgs`]. Out: a report. Knows nothing of how anything is decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use tiercel_daemon::Settings;
use tiercel_daemon::pages::{
    Attachment, GroupReport, PagesReport, Target, attach as tier, check, directory,
};
use tiercel_daemon::socket_dir::{ControlSocket, PAGES_PREFIX, usual_directory};
use tiercel_machine::{Machine, short_bytes};
use tiercel_mover::KernelMover;
use tiercel_sampler::{Config, Kind, Sampler, SamplerError};

use crate::args::AttachArgs;
use crate::engine::{machine, read_settings};
use crate::terminal::{note, say, say_json};

/// `tiercel attach`.
pub fn attach(args: &AttachArgs) -> Result<()> {
    let settings = settings(args)?;
    // Before the sampler sets anything.
    let target = target(args)?;
    target.check()?;
    let parts = Parts::open(&settings)?;
    for remark in &parts.remarks {
        note(format_args!("tiercel: {remark}"));
    }
    let (mode, name) = (settings.pages.mode.name(), parts.sampler.name());
    let attachment = parts.attachment(&settings, target.clone());
    let stop = stop_on_signals()?;
    if let Some(time) = args.time {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(time.0);
            stop.store(true, Ordering::Release);
        });
    }
    note(format_args!("tiercel: {target} by OS page, mode {mode}, sampler {name}"));
    let report = tier(attachment, &stop)?;
    if args.json { say_json("attach", &report) } else { say(&text(&report)) }
}

/// What tiering by OS page needs, before there is a process.
pub struct Parts {
    machine: Machine,
    sampler: Box<dyn Sampler>,
    socket: Option<ControlSocket>,
    /// For the user.
    pub remarks: Vec<String>,
}

impl Parts {
    /// Opens them; what cannot work is refused.
    pub fn open(settings: &Settings) -> Result<Parts> {
        let mut remarks = Vec::new();
        if !settings.machine.name.is_empty() {
            let name = &settings.machine.name;
            bail!("OS pages are real memory: a modelled machine ({name}) is no use");
        }
        let machine = machine(settings, &mut remarks)?;
        let sampler = sampler(settings, &mut remarks)?;
        check(&machine, &settings.pages, &*sampler)?;
        let socket = control_socket(&mut remarks);
        Ok(Parts { machine, sampler, socket, remarks })
    }

    /// All that is to be said of a target.
    pub fn attachment(self, settings: &Settings, target: Target) -> Attachment {
        Attachment {
            target,
            machine: self.machine,
            pages: settings.pages.clone(),
            fast: settings.fast,
            budgets: settings.budgets.clone(),
            sampler: self.sampler,
            mover: Box::new(KernelMover::new()),
            socket: self.socket,
        }
    }
}

/// Where `tiercel why ADDRESS` asks. Without it memory is tiered all the same.
fn control_socket(remarks: &mut Vec<String>) -> Option<ControlSocket> {
    let name = format!("{PAGES_PREFIX}{}", std::process::id());
    let socket = ControlSocket::claim(&usual_directory(), &name);
    let refused = socket.as_ref().err().map(|error| format!("why ADDRESS has no answers: {error}"));
    remarks.extend(refused);
    socket.ok()
}

fn target(args: &AttachArgs) -> Result<Target> {
    match (args.pid, &args.cgroup) {
        (Some(pid), _) => Ok(Target::Process(pid)),
        (None, Some(path)) => Ok(Target::Cgroup(directory(path))),
        (None, None) => bail!("attach to what? name --pid or --cgroup"),
    }
}

/// The file's settings, with what the command line says on top.
fn settings(args: &AttachArgs) -> Result<Settings> {
    let mut settings = match &args.config {
        None => Settings::default(),
        Some(path) => read_settings(path)?,
    };
    settings.pages.mode = args.mode.unwrap_or(settings.pages.mode);
    settings.fast = args.fast.unwrap_or(settings.fast);
    settings.sampler = args.sampler.map_or(settings.sampler, Into::into);
    settings.check()?;
    Ok(settings)
}

/// The sampler that was named; else `hint`, which sees who accesses, before the others.
fn sampler(settings: &Settings, remarks: &mut Vec<String>) -> Result<Box<dyn Sampler>> {
    let config = Config { hint_window_ms: settings.pages.window_ms, ..settings.sampling.clone() };
    let open = |kind: Kind| tiercel_sampler::open(kind, &config);
    if settings.sampler != Kind::Auto {
        return Ok(open(settings.sampler)?);
    }
    let refused = |hint: &SamplerError, other: &dyn std::fmt::Display| {
        format!("no sampler sees who accesses which OS page: {hint}; {other}")
    };
    match open(Kind::Hint) {
        Ok(sampler) => Ok(sampler),
        Err(hint) => {
            let others = [Kind::Emulator, Kind::Perf, Kind::Bpf];
            let Some(sampler) = others.into_iter().find_map(|kind| open(kind).ok()) else {
                bail!(refused(&hint, &"perf and bpf find no event here"));
            };
            remarks.push(format!("{} instead of hint: {hint}", sampler.name()));
            Ok(sampler)
        }
    }
}

fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    Ok(stop)
}

/// The report for people.
pub fn text(report: &PagesReport) -> String {
    let why = if report.process_ended { "it ended" } else { "detached" };
    let failed: Vec<String> = report
        .failed_bytes
        .iter()
        .map(|(why, bytes)| format!("{why} {}", short_bytes(*bytes)))
        .collect();
    let group = |one: &GroupReport| {
        let name = one.cgroup.as_ref().map_or("others".into(), |path| path.to_string_lossy());
        format!("budget    {name}: {} of {}\n", short_bytes(one.fast_bytes), one.fast)
    };
    let huge = match (report.splits, report.collapses, report.reshapes_failed) {
        (0, 0, 0) => String::new(),
        (splits, collapses, failed) => {
            format!("huge      {splits} broken up, {collapses} made, {failed} refused\n")
        }
    };
    let groups: String = report.groups.iter().map(group).collect();
    let failed = if failed.is_empty() { "nothing".to_owned() } else { failed.join(", ") };
    format!(
        "{}: {why} after {:.1}s, mode {}; {} processes\n\
         accesses  {}: {} samples, {} lost, {} elsewhere; {} windows, {} unknown, {} slow\n\
         demand    {} asked, {} stayed, {} locked, {} dropped; {} ticks stopped, {} blind\n\
         moves     {}: {} up, {} down, {} pairs exchanged, {:.2} ns a byte; {} rounds, {} refusals; \
         failed: {failed}\n{huge}{groups}",
        report.target,
        report.seconds,
        report.mode.name(),
        report.processes,
        report.sampler,
        report.samples,
        report.lost,
        report.elsewhere,
        report.windows,
        report.unknown_windows,
        report.slow_windows,
        report.asked,
        report.stayed,
        report.locked,
        report.dropped,
        report.stopped_ticks,
        report.blind_ticks,
        report.moves,
        short_bytes(report.promoted_bytes),
        short_bytes(report.demoted_bytes),
        report.exchanges,
        report.move_ns_per_byte,
        report.rounds,
        report.refusals,
    )
}
