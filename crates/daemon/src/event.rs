//! Everything that can happen to a daemon, as one closed list.
//! In: nothing. Out: [`Event`]. Knows nothing of what is done about it.

use crate::moves::queue::Done;
use crate::net::control::PeerId;
use crate::net::handshake::Arrival;
use crate::net::protocol::Request;

/// What happened.
pub(crate) enum Event {
    /// A process greeted well.
    ClientHello(Box<Arrival>),
    /// A client died; its number.
    ClientGone(u32),
    /// It is time to drain rings and samples.
    Drain,
    /// It is time to close the interval and to decide.
    Tick,
    /// The mover finished a job.
    MoverDone(Done),
    /// Somebody asks over the control socket.
    Request(PeerId, Request),
    /// It is time to end.
    Shutdown,
}
