//! A half-open range of segments of time.
//! In: nothing. Out: plain data. Knows nothing of objects.

/// First and last slot, both taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: u32,
    pub last: u32,
}
