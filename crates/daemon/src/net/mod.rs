//! The sockets: where they are, who may connect, and what goes over them.
//! In: connections. Out: arrivals, requests, readiness. Knows nothing of the ledger or the policy.
//!
//! ```text
//! socket_dir  lock, listening sockets
//! poller      epoll: which descriptor is ready
//! greeter     threads that receive, check and close   arrival   what they greeted
//! turnstile   which of them asks the broker next        places    who is hosted
//! handshake   client socket: hello -> arrival
//! control     control socket: connections, lines      protocol  lines <-> requests, answers
//! ```

pub(crate) mod arrival;
pub(crate) mod control;
pub(crate) mod greeter;
pub(crate) mod handshake;
pub(crate) mod places;
pub(crate) mod poller;
pub mod protocol;
pub mod socket_dir;
mod turnstile;
