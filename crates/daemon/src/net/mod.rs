//! The sockets: where they are, who may connect, what is said over them.
//! In: connections. Out: arrivals, requests, readiness. Knows nothing of the ledger or the policy.

pub(crate) mod control;
pub(crate) mod handshake;
pub(crate) mod poller;
pub mod protocol;
pub mod socket_dir;
