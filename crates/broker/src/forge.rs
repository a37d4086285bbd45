//! The broker's services on the caller's thread, each until its channel ends, for fuzzers.
//! In: channels with what a front asks. Out: answers, and calls of the caller's kernel and sampler.
//! Knows nothing of an honest front.

use crate::channel::Channel;
use crate::serve::{Known, identify, move_pages, observe};
use tiercel_mover::Kernel;
use tiercel_sampler::Sampler;

/// The services, and the processes that they have identified.
#[derive(Default)]
pub struct Services(Known);

impl Services {
    /// Identifies processes that connect.
    pub fn identify(&self, channel: Channel) {
        identify(channel, &self.0);
    }

    /// Moves memory of processes that were identified.
    pub fn move_pages(&self, channel: Channel, kernel: &mut impl Kernel) {
        move_pages(channel, &self.0, kernel);
    }

    /// Samples processes that were identified.
    pub fn sample(&self, channel: Channel, sampler: &mut dyn Sampler) {
        observe(channel, &self.0, sampler);
    }
}
