// SPDX-License-Identifier: GPL-2.0-or-later
//! A QEMU plugin that times every guest access with a model of caches and memories.
//! In: a configuration file named on QEMU's command line, the guest's instructions and accesses.
//! Out: the guest's clock, samples for the guest, statistics per node at exit.
//! Knows nothing of programs or policies. Loaded by QEMU 10 (TCG, one thread per virtual CPU).
//!
//! ```text
//!   block executes  --inline--> Counters (instructions, picoseconds) of its virtual CPU
//!   access          --> Core: L1 tags, address cache --miss--> L2, LLC, Window, Memory: a stall
//!   a miss          --> Export: now and then a record for the sampler in the guest
//!   every quantum   --> wait for the others, run timers that are due
//!   clock read      --> Clock: the least time of the running virtual CPUs, once they are as far
//!   all idle        --> warp to the next timer
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]
// The plugin, which uses the rest, needs QEMU's symbols: test programs cannot link it.
#![cfg_attr(test, expect(dead_code, reason = "the plugin is not part of test programs"))]

mod clock;
mod config;
mod core;
mod ideal;
mod instruction;
mod regions;
mod samples;
mod stats;
mod thread;
mod trace;
mod windows;

mod fatal;
mod ffi;
mod per_vcpu;
#[cfg(not(test))]
mod plugin;
#[cfg(not(test))]
mod task;
#[cfg(not(test))]
mod time;

pub use config::{Config, EmulatorError, PhysicalRange, Samples};
pub use stats::{
    BestStats, NodeStats, RegionStats, SpanStats, Stats, TraceStats, VcpuStats, WindowStats,
};
