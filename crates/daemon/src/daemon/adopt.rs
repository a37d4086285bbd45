//! Takes in forked children that do not attach.
//! In: children that were found from outside. Out: clients with an empty session of our own, whose
//! objects and sites are those that their parents had when they forked. Knows nothing of how
//! children are found.

use super::Daemon;
use crate::clients::client::Client;
use std::sync::Arc;
use std::time::Duration;
use tiercel_broker::{Peer, PeerError};
use tiercel_wire::Session;
use tiercel_wire::client::SessionBuilder;

/// Ages of processes are known to a clock tick: what was born in the last one before the fork is
/// not inherited.
const AGE_ERROR: Duration = Duration::from_millis(10);

impl Daemon {
    /// Takes in children that have lived for a while.
    pub(super) fn adopt_children(&mut self) {
        let now_ms = self.now_ms();
        for (parent, pid) in self.children.look(&self.tracking.clients, now_ms) {
            let found = self.tracking.clients.get(parent).map(|client| client.peer.child(pid));
            let is_adopted = match found {
                Some(Ok((child, age))) => self.adopt(parent, child, age, now_ms).is_some(),
                Some(Err(PeerError::User | PeerError::NoBroker)) => false,
                // It runs a program of its own, or is over.
                Some(Err(_)) | None => continue,
            };
            self.summary.clients.adopted += u64::from(is_adopted);
            self.summary.clients.unseen += u64::from(!is_adopted);
        }
    }

    fn adopt(&mut self, parent: u32, peer: Peer, age: Duration, now_ms: u64) -> Option<()> {
        let is_new = self.tracking.clients.number_of(peer.pid()).is_none();
        let session =
            own_session(peer.pid()).filter(|_| is_new && self.has_room_for(peer.uid()))?;
        let number = self.tracking.clients.take_number();
        self.sockets.watch_client(number, peer.pidfd()).ok()?;
        let allowance = self.tracking.clients.site_allowance(peer.uid());
        let client = Client::adopted(peer, session, number, allowance, now_ms);
        let peer = Arc::clone(&client.peer);
        let age = age.saturating_add(AGE_ERROR);
        self.tracking.insert_forked(client, parent, age, self.timeline.elapsed_ns())?;
        self.sampling.client_came(number, Vec::new());
        self.sockets.handshake.came(peer.pid(), peer.uid());
        self.moving.queue.came(peer);
        Some(())
    }
}

/// A session to which no process writes.
fn own_session(pid: u32) -> Option<Session> {
    let made = SessionBuilder::new().pid(pid).build().ok()?;
    Session::open(made.fd().ok()?).ok()
}
