//! Waits for readiness of descriptors: epoll with tokens that name what became ready.
//! In: descriptors, a token each, a timeout. Out: tokens. Knows nothing of what is behind them.

use rustix::event::{Timespec, epoll};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Number of a control connection, never reused.
pub type PeerId = u32;

/// Most descriptors taken at one wait; what is left comes with the next.
const EVENTS_MAX: usize = 64;

/// What became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// Processes were greeted.
    Clients,
    /// A connection waits on the control socket.
    Control,
    /// Another thread has a result for the loop, or wants it to end.
    Wake,
    /// The pidfd of a client: it died.
    Client(u32),
    /// A control connection.
    Peer(PeerId),
}

/// What to wait for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read.
    Read,
    /// Space to write.
    Write,
}

/// An epoll instance. The kernel removes a descriptor when it is closed.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller of no descriptor.
    pub fn new() -> std::io::Result<Poller> {
        Ok(Poller { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a descriptor.
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, data(token), flags(interest))?)
    }

    /// Changes what is polled of a descriptor.
    pub fn change(&self, fd: impl AsFd, token: Token, interest: Interest) -> std::io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, data(token), flags(interest))?)
    }

    /// Removes a descriptor that stays open; one that is not there is no error.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Tokens that are ready within `timeout`; none when it is over or a signal came.
    pub fn wait(&self, timeout: Duration) -> std::io::Result<Vec<Token>> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))
        {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.iter().filter_map(|event| token(event.data.u64())).collect())
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    match interest {
        Interest::Read => epoll::EventFlags::IN,
        Interest::Write => epoll::EventFlags::OUT,
    }
}

/// A token as epoll carries it: kind in the high half, number in the low half.
fn data(token: Token) -> epoll::EventData {
    let (kind, number) = match token {
        Token::Clients => (0u64, 0),
        Token::Control => (1, 0),
        Token::Wake => (2, 0),
        Token::Client(number) => (3, number),
        Token::Peer(number) => (4, number),
    };
    epoll::EventData::new_u64(kind << 32 | u64::from(number))
}

fn token(data: u64) -> Option<Token> {
    let number = u32::try_from(data & u64::from(u32::MAX)).ok()?;
    Some(match data >> 32 {
        0 => Token::Clients,
        1 => Token::Control,
        2 => Token::Wake,
        3 => Token::Client(number),
        4 => Token::Peer(number),
        _ => return None,
    })
}
