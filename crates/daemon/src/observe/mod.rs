//! Observing hosted processes: which of them are sampled, and what is recorded.
//! In: samples, ledger events. Out: samples in the ledger, a profile. Knows nothing of moves.

pub(crate) mod recording;
pub(crate) mod sampling;
