//! OS-page tiering (AutoTiering): which units of OS pages move where, decided anew at each tick.
//! In: the units that ask to move, what lies on full nodes, the room of each node. Out: moves in
//! the order in which they find room. Knows nothing of how accesses are seen or memory is copied.
//!
//! ```text
//!   demand ----> target = best memory near its accessor
//!                  room -----------------------------> move
//!                  full: cpmx  a partner the other way -> exchange
//!                        opm   a colder victim there ---> demote it, then move
//!                        else  the next best node ------> move
//! ```
//! [`baseline`] has published policies to compare with.

pub mod baseline;
mod benefit;
mod config;
mod history;
mod huge;
mod modes;
mod moves;
mod places;
mod reserve;
mod rooms;
mod stay;
mod tiering;
mod victims;

pub use benefit::Estimate;
pub use config::{Mode, PagesConfig};
pub use history::{LOCK_WINDOWS, RECENT_WINDOWS, REPEATED_SHARE_MAX};
pub use huge::{WARM_MAX, should_collapse, should_split};
pub use moves::PageDecision;
pub use places::{Places, PlacesError};
pub use reserve::Reserve;
pub use rooms::Rooms;
pub use stay::{Stay, Stayed};
pub use tiering::{Situation, Tiering};
pub use victims::Residents;
