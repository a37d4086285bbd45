//! The hosted processes, and what their allocation sites did.
//! In: arrivals, records, samples. Out: clients, counts by site. Knows nothing of moves or plans.

pub(crate) mod arrivals;
pub(crate) mod client;
pub(crate) mod fit;
pub(crate) mod order;
pub(crate) mod sharers;
pub(crate) mod sites;
pub(crate) mod table;
pub(crate) mod turns;
