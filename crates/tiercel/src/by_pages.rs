//! `tiercel run --by pages`: a program whose OS pages are tiered, with nothing loaded into it.
//! In: [`RunArgs`]. Out: the program's own exit status, and a report. Knows nothing of how anything
//! is decided.
//!
//! What observes is there before the program starts, so the kernel scans it from its first second
//! on. What can be wrong is found before; from then on the program comes first.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use tiercel_daemon::Settings;
use tiercel_daemon::pages::{AttachError, PagesReport, Target, attach};

use crate::args::{BackingArg, RunArgs};
use crate::attach::{Parts, text};
use crate::engine::settings;
use crate::host::{Ending, Hosted, end_like};
use crate::summary_file::SummaryFile;
use crate::terminal::{complain, json_of, prefixed};

type Tiered = Result<PagesReport, AttachError>;

/// Runs the program.
///
/// # Errors
/// What keeps it from being started.
pub fn run(args: &RunArgs, output: Option<SummaryFile>) -> Result<ExitCode> {
    refuse_options_of_objects(args)?;
    let mut settings = settings(&args.engine)?;
    settings.pages.mode = args.mode.unwrap_or(settings.pages.mode);
    let mut parts = Parts::open(&settings)?;
    let remarks = std::mem::take(&mut parts.remarks);
    let tiering = Tiering::prepare(parts, settings)?;
    let mut hosted = Hosted::start(&args.program, &[])?;
    // Fails only if the thread is gone, which its end will say.
    let _ = tiering.start.send(hosted.pid());
    let ending = hosted.wait();
    let tiered = tiering.end();
    let ending = ending?;
    if let Err(error) = report(args, output, &tiered, remarks, ending) {
        complain(&error);
    }
    Ok(end_like(ending))
}

/// Options that would do nothing here.
fn refuse_options_of_objects(args: &RunArgs) -> Result<()> {
    let engine = &args.engine;
    let named = [
        ("--plan", args.plan.is_some()),
        ("--prioritise", engine.prioritise.is_some()),
        ("--trigger", engine.trigger.is_some()),
        ("--enforce", engine.enforce.is_some()),
        ("--gate", engine.gate.is_some()),
        ("--tick", engine.tick.is_some()),
        ("--backing vmem", engine.backing == BackingArg::Vmem),
        ("--secure-heap", engine.secure_heap),
        ("--pool", !engine.pool.is_empty()),
    ];
    match named.iter().find(|(_, is_named)| *is_named) {
        Some((option, _)) => bail!("{option} is of objects, and does nothing with --by pages"),
        None => Ok(()),
    }
}

/// The thread that tiers the program.
struct Tiering {
    /// Gets the program's process once.
    start: Sender<u32>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Option<Tiered>>,
}

impl Tiering {
    /// A thread that waits for the program: from its start on nothing may fail.
    fn prepare(parts: Parts, settings: Settings) -> Result<Tiering> {
        let stop = Arc::new(AtomicBool::new(false));
        let (start, started): (Sender<u32>, Receiver<u32>) = channel();
        let should_stop = Arc::clone(&stop);
        let work = move || {
            let target = Target::Process(started.recv().ok()?);
            Some(attach(parts.attachment(&settings, target), &should_stop))
        };
        let thread = std::thread::Builder::new().name("tiercel-pages".into()).spawn(work);
        Ok(Tiering { start, stop, thread: thread.context("cannot start a thread")? })
    }

    /// What became of it, when the program has ended; an error in words.
    fn end(self) -> Result<PagesReport, String> {
        let Tiering { start, stop, thread } = self;
        stop.store(true, Ordering::Release);
        drop(start);
        match thread.join() {
            Ok(Some(Ok(report))) => Ok(report),
            Ok(Some(Err(AttachError::Gone(_))) | None) => {
                Err("it ended before anything was observed".to_owned())
            }
            Ok(Some(Err(error))) => Err(format!("it was not tiered: {error}")),
            Err(_) => Err("tiering failed by a panic, which is a defect".to_owned()),
        }
    }
}

fn report(
    args: &RunArgs,
    output: Option<SummaryFile>,
    tiered: &Result<PagesReport, String>,
    mut remarks: Vec<String>,
    ending: Ending,
) -> Result<()> {
    remarks.extend(tiered.as_ref().err().cloned());
    let is_asked = args.json || args.verbose || output.is_some();
    if args.quiet || !(is_asked || std::io::stderr().is_terminal() || tiered.is_err()) {
        return Ok(());
    }
    let pages = tiered.as_ref().ok();
    if args.json {
        let exit_status = ending.shell_status();
        let value = serde_json::json!({
            "pages": pages, "remarks": remarks, "exit_status": exit_status
        });
        return write(output, &json_of("run-pages", &value)?);
    }
    let mut out = pages.map(text).unwrap_or_default();
    for remark in remarks {
        out.push_str(&format!("remark    {remark}\n"));
    }
    write(output, &prefixed(&out))
}

fn write(output: Option<SummaryFile>, text: &str) -> Result<()> {
    match output {
        Some(output) => output.write(text),
        None => Ok(std::io::stderr().write_all(text.as_bytes())?),
    }
}
