//! Turns return addresses into functions, source files and lines.
//! In: frames as (path, build-id, ELF virtual address). Out: [`Named`] frames, and which of them
//! only wraps an allocator. Knows nothing of objects, profiles or processes.

#![forbid(unsafe_code)]

mod symbols;
mod wrappers;

pub use symbols::{Named, SiteFrame, Symbols, build_id, hex};
pub use wrappers::is_wrapper;
