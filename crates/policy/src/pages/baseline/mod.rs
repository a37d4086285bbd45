//! Published policies of OS pages, to compare with: CLOCK-DWF, 2PP, turns.
//! In: OS pages that are read or written back, births and deaths. Out: [`PageStep`]s. Knows nothing
//! of clocks, of copying, or of what an access costs.
//!
//! ```text
//! (OS page, read | write-back) --> baseline --> Place: where a first touch goes
//!                                         \--> Move: while the program waits
//! ```
//! A baseline keeps where each OS page lies, and never lets the fast memory exceed its room.

mod clock_dwf;
mod interleave;
mod page_places;
mod two_phase;

pub use clock_dwf::{ClockDwf, ClockRules, MeanOf};
pub use interleave::Interleave;
pub use two_phase::{KnownObject, TwoPhase};

/// How memory sees an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAccess {
    /// Lines are read.
    Read,
    /// Lines go back; of a first touch: by a store.
    WriteBack,
}

/// What a baseline does with an OS page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStep {
    /// Which one.
    pub os_page: u64,
    /// Where it is from now on.
    pub is_fast: bool,
    /// It is touched for the first time, and nothing is copied.
    pub is_first: bool,
}

/// OS pages of an object, from the first one of all on.
pub type OsPages = std::ops::Range<u64>;

/// A policy of OS pages.
pub trait PageBaseline {
    /// An object is born; its OS pages are not touched yet, or kept from a dead one.
    fn born(&mut self, _: OsPages) {}
    /// An OS page is accessed so many times; above 0.
    fn access(&mut self, os_page: u64, access: PageAccess, count: f64, steps: &mut Vec<PageStep>);
    /// So much time has passed since the start, nanoseconds.
    fn tick(&mut self, _now_ns: u64, _: &mut Vec<PageStep>) {}
    /// An object is dead; `goes_back`: and its memory with it.
    fn died(&mut self, os_pages: OsPages, goes_back: bool);
}
