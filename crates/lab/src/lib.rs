//! Boots a stock Linux kernel with a machine's memory nodes and runs programs in it.
//! In: a machine description, commands, files. Out: their files, output and exit status.
//! Knows nothing of policies; the guest runs the same binaries as any machine.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

pub mod bench;
pub mod cli;
pub mod suite;
pub mod truth;

mod cache;
mod closure;
mod cpio;
mod fetch;
mod guest;
mod image;
mod kvm;
mod mark;
mod qemu;
mod sources;
mod timing;
mod topology;

pub use cache::{Cache, free_bytes};
pub use fetch::Packages;
pub use guest::{Guest, Outcome, Request, Streams};
pub use image::Payload;
pub use qemu::Acceleration;
pub use timing::{Counted, Model, Region, Span, Times, Timing, Trace, Traced, Window};
pub use topology::{Size, Topology};

/// Receives progress lines of steps that last longer than two seconds. The caller decides where
/// they go; this crate prints nothing.
pub type Progress<'a> = dyn FnMut(&str) + 'a;
