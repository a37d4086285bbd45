//! A stride prefetcher.
//! In: the lines a core's first level misses, in order. Out: lines to fetch ahead of need.
//! Knows nothing of caches, time, or what became of the lines it named.
//!
//! ```text
//!   streams [hash of region]  the region of 4 KiB, the last line in it, the stride to it
//! ```
//!
//! Two equal strides in a row start a stream. It never leaves its region: the next OS page may be
//! anywhere in physical memory, so real prefetchers of this level stop there as well.

use crate::{LINE_BYTES, ModelError, place};
use tiercel_machine::number::signed;

/// Streams watched at once, one per 4 KiB region; a region takes the place of another with the same
/// hash. By hash, because arrays that are walked together often lie a power of two apart.
pub const STREAMS: usize = 64;

/// Lines of a region.
const REGION_LINES: u64 = 4096 / LINE_BYTES;

/// How eager the prefetcher is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchShape {
    /// Lines fetched at most for each miss of a stream.
    pub degree: u32,
    /// Strides that it may be in front of the program.
    pub ahead: u32,
    /// Lines in flight at once.
    pub lines: u32,
}

/// The prefetcher of one core.
#[derive(Clone, Debug)]
pub struct Prefetcher {
    shape: PrefetchShape,
    streams: Vec<Stream>,
}

/// Invariant: while `running`, all lines from `last` to `front` have been named, and `front` is on
/// the stream.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Region number + 1; 0 = nothing seen.
    region: u64,
    last: i64,
    stride: i64,
    running: bool,
    front: i64,
}

/// Lines to fetch: the first, the step to the next, how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    first: u64,
    stride: i64,
    count: u32,
}

impl Prefetcher {
    /// Nothing seen yet.
    pub fn new(shape: PrefetchShape) -> Result<Prefetcher, ModelError> {
        if shape.degree == 0 || shape.ahead == 0 || shape.lines == 0 {
            let what = "a prefetcher needs a degree, a distance and lines in flight above 0";
            return Err(ModelError::Shape(what));
        }
        Ok(Prefetcher { shape, streams: vec![Stream::default(); STREAMS] })
    }

    /// The first level missed this line; what to fetch.
    pub fn miss(&mut self, line: u64) -> Ahead {
        let (region, at) = (line / REGION_LINES, signed(line % REGION_LINES));
        let stream = &mut self.streams[place(region, STREAMS as u64)];
        if stream.region != region + 1 {
            *stream = Stream { region: region + 1, last: at, ..Stream::default() };
            return Ahead::default();
        }
        let stride = at - std::mem::replace(&mut stream.last, at);
        if stride == 0 {
            return Ahead::default();
        }
        if stride != stream.stride {
            (stream.stride, stream.running) = (stride, false);
            return Ahead::default();
        }
        if !stream.running || (stream.front - at) * stride < 0 {
            (stream.running, stream.front) = (true, at);
        }
        let inside = |line: i64| (0..signed(REGION_LINES)).contains(&line);
        let mut count = 0;
        while count < self.shape.degree
            && inside(stream.front + stride)
            && (stream.front + stride - at) / stride <= i64::from(self.shape.ahead)
        {
            stream.front += stride;
            count += 1;
        }
        let first = stream.front - (i64::from(count) - 1) * stride;
        Ahead { first: region * REGION_LINES + u64::try_from(first).unwrap_or(0), stride, count }
    }
}

impl Ahead {
    /// The lines, nearest first.
    pub fn lines(self) -> impl Iterator<Item = u64> {
        (0..i64::from(self.count)).map(move |i| self.first.wrapping_add_signed(i * self.stride))
    }
}
