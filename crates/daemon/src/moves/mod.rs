//! Moves on their way: the mover's queue, the log of outcomes, and processes that move their own
//! memory. In: moves. Out: outcomes. Knows nothing of why anything moves.

pub(crate) mod log;
pub(crate) mod queue;
pub(crate) mod self_moves;
