//! The hosted processes, and what their allocation sites did.
//! In: arrivals, records, samples. Out: clients, counts by site. Knows nothing of moves or plans.

pub(crate) mod arrivals;
pub(crate) mod children;
pub(crate) mod client;
pub(crate) mod client_uses;
pub(crate) mod fit;
pub(crate) mod heads;
pub(crate) mod layouts;
pub(crate) mod live;
pub(crate) mod misses;
pub(crate) mod order;
pub(crate) mod origin;
pub(crate) mod parents;
pub(crate) mod pass;
pub(crate) mod processes;
pub(crate) mod sharers;
pub(crate) mod shares;
pub(crate) mod site_use;
pub(crate) mod sites;
pub(crate) mod statics;
pub(crate) mod table;
pub(crate) mod turns;
pub(crate) mod within;
