//! Observing hosted processes: which of them are sampled, where their memory is, what is recorded.
//! In: clients, samples, ledger events. Out: instructions to the sampler, residency in the ledger,
//! a profile, how much of
//! their memory is known. Knows nothing of moves or plans.

pub(crate) mod coverage;
pub(crate) mod learning;
pub(crate) mod recording;
pub(crate) mod residency;
pub(crate) mod sampling;
pub(crate) mod unnamed;
