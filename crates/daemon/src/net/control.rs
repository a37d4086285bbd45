//! The control socket's connections: bounded lines in and out; slow or silent peers are dropped.
//! In: a listening socket, readiness. Out: parsed requests with the peer that sent them.
//! Knows nothing of what a request means.

use super::poller::{Interest, PeerId, Poller, Token};
use super::protocol::{
    PEERS_MAX, ProtocolError, REQUEST_BYTES_MAX, Request, error_line, parse_request,
};
use rustix::net::{SocketFlags, sockopt};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Answer bytes that may wait for a slow reader before it is dropped: four answers of ROWS_MAX rows
/// of about 1 KiB.
pub const UNREAD_BYTES_MAX: usize = 4 << 20;

/// Requests of one peer that are served for one readiness. A peer that sends more at once is
/// dropped.
pub const REQUESTS_PER_TURN: usize = 16;

/// A connection without traffic for this long is closed, milliseconds: ten minutes, far longer than
/// between two refreshes of `tiercel top`.
pub const IDLE_MS_MAX: u64 = 600_000;

struct Peer {
    fd: OwnedFd,
    unparsed: Vec<u8>,
    unsent: Vec<u8>,
    last_ms: u64,
    finished: bool,
}

/// All connections of the control socket.
pub struct Control {
    listener: OwnedFd,
    peers: BTreeMap<PeerId, Peer>,
    next: PeerId,
    uid: u32,
    /// Connections refused: of another user, or too many.
    pub refused: u64,
}

impl Control {
    /// Serves `listener` for user `uid` and for root.
    pub fn new(listener: OwnedFd, uid: u32, poller: &Poller) -> std::io::Result<Control> {
        poller.add(&listener, Token::Control, Interest::Read)?;
        Ok(Control { listener, peers: BTreeMap::new(), next: 1, uid, refused: 0 })
    }

    /// Accepts what waits on the listening socket.
    pub fn accept(&mut self, poller: &Poller, now_ms: u64) {
        for _ in 0..PEERS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(fd) = rustix::net::accept_with(&self.listener, flags) else { return };
            let known = sockopt::socket_peercred(&fd)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid.as_raw() == self.uid);
            let id = self.next;
            if !known
                || self.peers.len() >= PEERS_MAX
                || poller.add(&fd, Token::Peer(id), Interest::Read).is_err()
            {
                self.refused += 1;
                continue;
            }
            self.next = self.next.wrapping_add(1);
            let (unparsed, unsent) = (Vec::new(), Vec::new());
            self.peers.insert(id, Peer { fd, unparsed, unsent, last_ms: now_ms, finished: false });
        }
    }

    /// Reads the requests of peer `id`. Malformed lines are answered with an error here.
    pub fn read(&mut self, id: PeerId, poller: &Poller, now_ms: u64) -> Vec<Request> {
        let Some(peer) = self.peers.get_mut(&id) else { return Vec::new() };
        peer.last_ms = now_ms;
        let mut chunk = [0u8; REQUEST_BYTES_MAX];
        match rustix::io::read(&peer.fd, &mut chunk) {
            Ok(0) => peer.finished = true,
            Ok(count) => peer.unparsed.extend_from_slice(&chunk[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => {
                self.peers.remove(&id);
                return Vec::new();
            }
        }
        let (requests, errors) = take_lines(peer);
        for error in errors {
            self.send(id, &error_line(&error.to_string()), poller);
        }
        self.flush(id, poller);
        requests
    }

    /// Queues `line` for peer `id` and sends what the socket takes.
    pub fn send(&mut self, id: PeerId, line: &[u8], poller: &Poller) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.unsent.extend_from_slice(line);
            self.flush(id, poller);
        }
    }

    /// Closes connections without traffic for [`IDLE_MS_MAX`].
    pub fn drop_idle(&mut self, now_ms: u64) {
        self.peers.retain(|_, peer| now_ms.saturating_sub(peer.last_ms) < IDLE_MS_MAX);
    }

    /// Sends what the socket takes; drops the peer when it is finished, gone, or too slow.
    pub fn flush(&mut self, id: PeerId, poller: &Poller) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let mut alive = true;
        while alive && !peer.unsent.is_empty() {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&peer.fd, &peer.unsent, flags) {
                Ok(count) => drop(peer.unsent.drain(..count)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => alive = false,
            }
        }
        let waiting = !peer.unsent.is_empty();
        if !alive || peer.unsent.len() > UNREAD_BYTES_MAX || (peer.finished && !waiting) {
            self.peers.remove(&id);
            return;
        }
        let interest = if waiting { Interest::Write } else { Interest::Read };
        if poller.change(&peer.fd, Token::Peer(id), interest).is_err() {
            self.peers.remove(&id);
        }
    }
}

/// Parses the complete lines of what was read. A line beyond its bound ends the connection: where
/// the next one would begin is unknown.
fn take_lines(peer: &mut Peer) -> (Vec<Request>, Vec<ProtocolError>) {
    let (mut requests, mut errors) = (Vec::new(), Vec::new());
    while let Some(end) = peer.unparsed.iter().position(|&byte| byte == b'\n') {
        let line: Vec<u8> = peer.unparsed.drain(..=end).collect();
        let line = line[..end].trim_ascii();
        if line.is_empty() {
            continue;
        }
        if requests.len() + errors.len() >= REQUESTS_PER_TURN {
            peer.finished = true;
            break;
        }
        match parse_request(line) {
            Ok(request) => requests.push(request),
            Err(error) => errors.push(error),
        }
    }
    if peer.unparsed.len() > REQUEST_BYTES_MAX {
        errors.push(ProtocolError::TooLong);
        peer.unparsed.clear();
        peer.finished = true;
    }
    (requests, errors)
}
