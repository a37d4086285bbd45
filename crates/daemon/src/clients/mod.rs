//! The hosted processes and what their allocation sites did.
//! In: arrivals, records, samples. Out: counts by site. Knows nothing of moves.

pub(crate) mod client;
pub(crate) mod fit;
pub(crate) mod sites;
