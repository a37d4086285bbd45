//! Turns return addresses into functions, source files and lines.
//! In: frames as (path, build-id, ELF virtual address). Out: [`Named`] frames, and which of them
//! only wraps an allocator; the [`DataSymbol`]s of modules. Knows nothing of objects or profiles.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod child;
mod elf;
mod frame;
mod symbols;
mod wrappers;

pub use child::{Own, StartChild, serve, start_child};
pub use elf::build_id;
pub use frame::{DataSymbol, Named, SiteFrame, hex};
pub use symbols::{Reader, Symbols};
pub use wrappers::is_wrapper;
