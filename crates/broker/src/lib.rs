//! Splits a daemon for all users by privilege: the *front* talks to clients and has no rights of
//! its own, the *broker* does what takes privilege and reads nothing that clients send.
//! In: a front that asks. Out: identified processes, samples, moves. Knows nothing of policies.
//!
//! ```text
//!  clients --> front: sockets, sessions, ledger, policy     no capability, no file of root's
//!                |  Service: identity, mover, sampler, symbols (one channel and thread each)
//!              broker: /proc, perf, BPF, move_pages          six capabilities
//!                |
//!              children that read symbols, each with the rights of the user whose files they read
//! ```
//!
//! A daemon of one user is one process: it has no right that its clients do not have.
//! docs/decisions/0005 compares the alternatives.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod channel;
mod client;
mod confine;
#[cfg(feature = "forge")]
mod forge;
mod peer;
mod protocol;
mod serve;

pub use channel::Channel;
pub use client::{Broker, BrokeredKernel, BrokeredSymbols, Identity};
pub use confine::{ConfineError, Front, keep_only_capabilities};
#[cfg(feature = "forge")]
pub use forge::Services;
pub use peer::Peer;
pub use protocol::PeerError;
pub use serve::serve;
