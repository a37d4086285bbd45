//! Who does what takes privilege: this process, or a broker for it.
//! In: what is needed. Out: samplers, movers, symbols, identities. Knows nothing of policies.

use crate::args::DaemonArgs;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tiercel_broker::{Broker, BrokeredKernel, Channel, Front, Identity};
use tiercel_daemon::Daemon;
use tiercel_mover::{KernelMover, Mover};
use tiercel_sampler::{Config, Kind, Sampler, SamplerError};
use tiercel_symbolize::{Own, Reader};

/// This program, also after its file was replaced by another version.
const THIS: &str = "/proc/self/exe";

/// Who does it.
pub enum Privilege {
    /// This process: all that it observes and moves belongs to its user.
    Own,
    /// Its broker; and what this process becomes.
    Brokered(Box<Broker>, Front),
}

impl Privilege {
    /// What a daemon needs. One for all users is split. Before the first thread.
    pub fn of_daemon(args: &DaemonArgs) -> Result<Privilege> {
        if !args.all_users {
            return Ok(Privilege::Own);
        }
        let mut command = Command::new(THIS);
        // A signal from the terminal is for the daemon; its broker ends with it.
        command.arg0("tiercel").arg("broker").process_group(0);
        let broker = Broker::start(command).context("cannot start the broker")?;
        Ok(Privilege::Brokered(Box::new(broker), Front::prepare()))
    }

    /// Gives up every privilege before the first client is served. A daemon whose broker ends
    /// stops: nothing could be observed or moved any more.
    pub fn give_up(self, daemon: &Daemon) -> Result<Option<Held>> {
        let Privilege::Brokered(mut broker, front) = self else { return Ok(None) };
        let (files, lock) = daemon.socket_files();
        broker.remove_at_end(files, lock)?;
        front.enter()?;
        let (mut process, primary) = broker.into_parts();
        let (handle, has_ended) = (daemon.handle(), Arc::new(AtomicBool::new(false)));
        let noticed = Arc::clone(&has_ended);
        std::thread::spawn(move || {
            let _ = process.wait();
            noticed.store(true, Ordering::Release);
            handle.stop();
        });
        Ok(Some(Held { has_ended, _primary: primary }))
    }

    /// The kernel's mover; `asks`: processes that can move their own memory are asked first.
    pub fn mover(&mut self, asks: bool) -> io::Result<Box<dyn Mover + Send>> {
        Ok(match (self, asks) {
            (Privilege::Own, false) => Box::new(KernelMover::new()),
            (Privilege::Own, true) => Box::new(KernelMover::new().with_self_movers()),
            (Privilege::Brokered(broker, _), false) => Box::new(brokered(broker)?),
            (Privilege::Brokered(broker, _), true) => {
                Box::new(brokered(broker)?.with_self_movers())
            }
        })
    }

    /// A sampler.
    pub fn sampler(
        &mut self,
        kind: Kind,
        config: &Config,
    ) -> Result<Box<dyn Sampler>, SamplerError> {
        match self {
            // What processes report themselves takes no privilege.
            _ if kind == Kind::Compiled => tiercel_sampler::open(kind, config),
            Privilege::Own => tiercel_sampler::open(kind, config),
            Privilege::Brokered(broker, _) => broker.sampler(kind, config),
        }
    }

    /// What identifies processes.
    pub fn identity(&mut self) -> io::Result<Identity> {
        match self {
            Privilege::Own => Ok(Identity::default()),
            Privilege::Brokered(broker, _) => broker.identity(),
        }
    }

    /// What reads symbols.
    pub fn symbols(&mut self) -> io::Result<Reader> {
        match self {
            Privilege::Own => Ok(symbol_reader()),
            Privilege::Brokered(broker, _) => Ok(Reader::Child(Arc::new(broker.symbols()?))),
        }
    }
}

fn brokered(broker: &mut Broker) -> io::Result<KernelMover<BrokeredKernel>> {
    broker.kernel().map(KernelMover::with_kernel)
}

/// A child reads the symbols of hosted programs: whatever their files contain, the command goes on.
pub fn symbol_reader() -> Reader {
    Reader::Child(Arc::new(Own(symbol_command())))
}

fn symbol_command() -> Vec<OsString> {
    vec![THIS.into(), "symbolize".into()]
}

/// `tiercel broker`: serves the daemon that started it.
pub fn serve_as_broker() -> Result<()> {
    tiercel_broker::keep_only_capabilities()?;
    let front = io::stdin().as_fd().try_clone_to_owned()?;
    tiercel_broker::serve(front, symbol_command()).context("the daemon broke the protocol")
}

/// The connection that keeps the broker running.
pub struct Held {
    has_ended: Arc<AtomicBool>,
    _primary: Channel,
}

impl Held {
    /// Ends the broker.
    ///
    /// # Errors
    /// When it had ended before.
    pub fn end(self) -> Result<()> {
        if self.has_ended.load(Ordering::Acquire) {
            bail!("the broker ended, so the daemon stopped; hosted programs run on without it");
        }
        Ok(())
    }
}
