//! A daemon that takes one step at a time, on the caller's thread, for fuzzers.
//! In: connections, what the sampler sees, the time. Out: answers, a final report. Knows nothing of
//! sockets that others can reach.

use super::Daemon;
use crate::config::DaemonConfig;
use crate::event::Event;
use crate::net::protocol::{error_line, parse_request};
use crate::parts::{DaemonError, Parts};
use crate::summary::FinalReport;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A daemon whose loop is the caller.
pub struct Stepped(Daemon);

impl Stepped {
    /// As [`Daemon::new`].
    ///
    /// # Errors
    /// Those of [`Daemon::new`].
    pub fn new(config: DaemonConfig, parts: Parts) -> Result<Stepped, DaemonError> {
        Daemon::new(config, parts).map(Stepped)
    }

    /// Receives what waits on a connection, through the gate that every process passes. True when
    /// it asks to be hosted, or for memory of pools.
    pub fn greet(&mut self, connection: OwnedFd) -> bool {
        let Daemon { sockets, pools, .. } = &mut self.0;
        let has_passed = sockets.greet_here(connection, pools.as_ref());
        self.step(Event::Greet);
        has_passed
    }

    /// The time is later from now on.
    pub fn pass(&mut self, milliseconds: u64) {
        self.0.timeline = self.0.timeline.later(Duration::from_millis(milliseconds));
    }

    /// Drains rings and samples.
    pub fn drain(&mut self) {
        self.step(Event::Sample { is_forced: true });
        self.step(Event::Drain);
    }

    /// A whole tick, with the decision and the moves that come of it.
    pub fn tick(&mut self) {
        self.step(Event::Tick);
    }

    /// The answer to a line of the control socket.
    pub fn ask(&mut self, line: &[u8]) -> Vec<u8> {
        match parse_request(line) {
            Ok(request) => self.0.reply(&request),
            Err(error) => error_line(&error.to_string()),
        }
    }

    /// Hosted processes.
    pub fn clients(&self) -> usize {
        self.0.tracking.clients.len()
    }

    /// As at the end of [`Daemon::run`].
    pub fn finish(self) -> FinalReport {
        self.0.finish()
    }

    fn step(&mut self, event: Event) {
        self.0.events.push(event);
        self.0.handle_events();
    }
}
