//! `tiercel daemon`: serves programs until it is stopped, or stops the running daemon.
//! In: [`DaemonArgs`]. Out: a summary at the end. Knows nothing of how anything is decided.

use crate::args::DaemonArgs;
use crate::engine::{Engine, engine, heap_environment, settings};
use crate::link::Link;
use crate::privilege::{Held, Privilege};
use crate::terminal::{note, say, say_json};
use crate::{library, show};
use anyhow::{Context, Result, bail};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use tiercel_daemon::protocol::Request;
use tiercel_daemon::socket_dir::{
    Access, DAEMON_NAME, clients_path, control_path, usual_directory,
};
use tiercel_daemon::{Daemon, FinalReport, Handle};
use tiercel_symbolize::Symbols;

/// `tiercel daemon`.
pub fn daemon(args: &DaemonArgs) -> Result<()> {
    let directory = args.dir.clone().unwrap_or_else(usual_directory);
    if args.stop {
        return stop(&directory);
    }
    if args.env {
        return environment(args, &directory);
    }
    if args.all_users && !rustix::process::geteuid().is_root() {
        bail!("--all-users needs root: other users' memory cannot be moved without");
    }
    let settings = settings(&args.engine)?;
    raise_descriptor_limit();
    let mut privilege = Privilege::of_daemon(args)?;
    let engine = engine(&settings, &mut privilege)?;
    let Engine { mut config, parts, remarks, environment: _ } =
        engine.with_vregions(&args.engine, &mut privilege)?;
    config.directory = directory;
    config.access = if args.all_users { Access::AllUsers } else { Access::Owner };
    let daemon = Daemon::new(config, parts)?;
    for remark in remarks {
        note(format_args!("tiercel: {remark}"));
    }
    stop_on_signals(daemon.handle())?;
    let symbols = privilege.symbols()?;
    let broker = privilege.give_up(&daemon)?;
    note(format_args!("tiercel: serving programs started with `eval $(tiercel daemon --env)`"));
    notify_service_manager("READY=1");
    print_report(args, &daemon.run()?, &mut Symbols::new(&symbols))?;
    broker.map_or(Ok(()), Held::end)
}

/// Takes all descriptors that the hard limit allows: a client has five, and the usual soft limit of
/// 1024 would end at some 200 clients.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Within the hard limit no right is needed.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn print_report(
    args: &DaemonArgs,
    final_report: &FinalReport,
    symbols: &mut Symbols,
) -> Result<()> {
    if args.json {
        return say_json("daemon", &show::named_json(final_report, symbols)?);
    }
    say(&show::final_report(final_report, symbols, 10))
}

/// Stops the running daemon.
fn stop(directory: &Path) -> Result<()> {
    let mut link = Link::open(&control_path(directory, DAEMON_NAME))?;
    link.ask(&Request::Stop, "stop")?;
    Ok(())
}

fn stop_on_signals(handle: Handle) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            handle.stop();
        }
    });
    Ok(())
}

/// The variables that make a program attach.
fn environment(args: &DaemonArgs, directory: &Path) -> Result<()> {
    let library = library::find()?;
    let socket: PathBuf = clients_path(directory, DAEMON_NAME);
    if !is_served(directory) {
        note(format_args!(
            "tiercel: no daemon answers at {}: programs with these variables run unhosted until \
             `tiercel daemon` serves there",
            socket.display()
        ));
    }
    let mut variables = vec![("LD_PRELOAD", text(&library)?.to_owned())];
    variables.push(("TIERCEL_SOCKET", text(&socket)?.to_owned()));
    for (name, value) in heap_environment(&settings(&args.engine)?) {
        variables.push((name, text(Path::new(&value))?.to_owned()));
    }
    if args.json {
        let variables: BTreeMap<_, _> = variables.into_iter().collect();
        return say_json("environment", &serde_json::json!({ "environment": variables }));
    }
    let line = |(name, value): &(&str, String)| format!("export {name}={}\n", quoted(value));
    say(&variables.iter().map(line).collect::<String>())
}

/// Whether a daemon listens there; one that may not be asked by this user does.
fn is_served(directory: &Path) -> bool {
    let Err(error) = UnixStream::connect(control_path(directory, DAEMON_NAME)) else { return true };
    !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// A text as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// systemd's readiness protocol: one datagram to the socket it names. Without one, nothing.
fn notify_service_manager(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    // A service manager that does not listen needs no notification.
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
