//! A pass over the extents of all clients.
//! In: extents, each client's by address. Out: what an implementation makes of them. Knows nothing
//! of the order of clients, or of what happens between two extents.

use super::client::Client;
use tiercel_ledger::Extent;

/// Sees extents one by one. A client that leaves in the middle has not been seen.
pub(crate) trait Pass {
    /// One of a client.
    fn see(&mut self, extent: &Extent<'_>);
    /// All of a client were seen.
    fn seen(&mut self, client: &mut Client);
    /// A client left before all of it were seen.
    fn forget(&mut self);
}
