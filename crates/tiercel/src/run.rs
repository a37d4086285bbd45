//! `tiercel run`: a program with the daemon in the parent.
//! In: [`RunArgs`]. Out: the program's own exit status, and a summary on standard error.
//! Knows nothing of how anything is decided.
//!
//! What can be wrong is found before the program starts; from then on the program comes first: the
//! daemon works on a thread of its own, and if it fails the program goes on.

use crate::args::RunArgs;
use crate::engine::{Engine, engine, settings};
use crate::host::{EXIT_REFUSED, Ending, Hosted, StartError, end_like};
use crate::program::{find, hindrance};
use crate::{library, show};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::thread::JoinHandle;
use tiercel_daemon::symbols::Symbols;
use tiercel_daemon::{Daemon, DaemonError, Farewell, Handle};

/// The runtime's only variable.
const SOCKET_VARIABLE: &str = "TIERCEL_SOCKET";

type Running = JoinHandle<Result<Farewell, DaemonError>>;

/// Runs the program; what it returns is the program's ending, or a refusal to start it.
pub fn run(args: &RunArgs) -> ExitCode {
    match start(args) {
        Ok(started) => started.finish(args),
        Err(error) => {
            eprintln!("tiercel: {error:#}; the program was not started");
            match error.downcast_ref::<StartError>() {
                Some(start) => ExitCode::from(start.status()),
                None => ExitCode::from(EXIT_REFUSED),
            }
        }
    }
}

struct Started {
    hosted: Hosted,
    daemon: Running,
    handle: Handle,
    remarks: Vec<String>,
}

fn start(args: &RunArgs) -> Result<Started> {
    let Engine { mut config, parts, mut remarks } = engine(&settings(&args.engine)?)?;
    let library = library::find()?;
    if !library::can_be_preloaded(&library) {
        bail!("{} cannot be preloaded: its path has a space or a colon", library.display());
    }
    let path = std::env::var_os("PATH");
    if let Some(found) = find(&args.program[0], path.as_deref())
        && let Some(hindrance) = hindrance(&found)
    {
        remarks.push(hindrance.to_string());
    }
    // Two runs of one user live side by side: each has a place of its own.
    config.name = format!("run-{}", std::process::id());
    let daemon = Daemon::new(config, parts)?;
    let users = std::env::var_os("LD_PRELOAD");
    let added: Vec<(&str, OsString)> = vec![
        ("LD_PRELOAD", library::preload(&library, users.as_deref())),
        (SOCKET_VARIABLE, daemon.clients_path().into()),
    ];
    let handle = daemon.handle();
    let daemon = std::thread::Builder::new()
        .name("tiercel-daemon".into())
        .spawn(move || daemon.run())
        .context("cannot start the daemon's thread")?;
    match Hosted::start(&args.program, &added) {
        Ok(hosted) => Ok(Started { hosted, daemon, handle, remarks }),
        Err(error) => {
            handle.stop();
            // Nothing was served: its farewell has nothing to say.
            let _ = daemon.join();
            Err(error.into())
        }
    }
}

impl Started {
    fn finish(mut self, args: &RunArgs) -> ExitCode {
        let ending = self.hosted.wait();
        self.handle.stop();
        let farewell = match self.daemon.join() {
            Ok(Ok(farewell)) => Some(farewell),
            Ok(Err(error)) => {
                self.remarks.push(format!("the daemon failed: {error}; the program went on"));
                None
            }
            Err(_) => {
                self.remarks.push("the daemon failed; the program went on".to_owned());
                None
            }
        };
        let ending = match ending {
            Ok(ending) => ending,
            Err(error) => {
                eprintln!("tiercel: {error:#}");
                return ExitCode::from(EXIT_REFUSED);
            }
        };
        if !args.quiet
            && let Err(error) = report(args, farewell.as_ref(), &self.remarks, ending)
        {
            eprintln!("tiercel: cannot write the summary: {error:#}");
        }
        end_like(ending)
    }
}

/// Writes the summary where it was asked for. It never changes the program's exit status.
fn report(
    args: &RunArgs,
    farewell: Option<&Farewell>,
    remarks: &[String],
    ending: Ending,
) -> Result<()> {
    let mut symbols = Symbols::new();
    let text = if args.json {
        let mut value = match farewell {
            Some(farewell) => show::named_json(farewell, &mut symbols),
            None => serde_json::json!({}),
        };
        value["remarks"] = remarks.into();
        value["exit_status"] = ending.shell_status().into();
        format!("{value}\n")
    } else {
        text(args, farewell, remarks, &mut symbols)
    };
    match &args.output {
        Some(path) => std::fs::write(path, text).with_context(|| path.display().to_string()),
        None => Ok(std::io::stderr().write_all(text.as_bytes())?),
    }
}

fn text(
    args: &RunArgs,
    farewell: Option<&Farewell>,
    remarks: &[String],
    symbols: &mut Symbols,
) -> String {
    let mut out = String::from("\n");
    if let Some(farewell) = farewell {
        if farewell.summary.clients.attached == 0 {
            out.push_str("no process attached: its objects were not seen\n");
        }
        out.push_str(&show::farewell(farewell, symbols, args.rows));
    }
    for remark in remarks {
        out.push_str(&format!("remark     {remark}\n"));
    }
    out.lines().map(|line| format!("tiercel: {line}").trim_end().to_owned() + "\n").collect()
}
