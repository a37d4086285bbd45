//! OS pages that no object names: what each was accessed by, how often lately, and where it is.
//! In: mappings, accesses, residency, the ends of windows. Out: [`Unit`]s. Knows nothing of who
//! moves them.

mod unit;

pub use unit::{Accessor, GroupId, LEVEL_MAX, Unit, UnitKey};
