//! The `compiled` sampler: misses that programs compiled by `tiercel cc` report themselves. In:
//! what the daemon found in their rings. Out: samples. Knows nothing of how they find their misses
//! (`runtime/probe`), but says through which caches.

use std::path::Path;

use tiercel_wire::{Now, ProbeTerms, Sample};

use crate::{
    Config, Cost, Counters, Drained, Granularity, Kind, Method, Sampler, SamplerCapabilities,
    SamplerError,
};

mod terms;

pub use terms::{Caches, Rate, TermsError};

/// A thread reports its oldest misses each millisecond, 256 OS pages of them; the model's 65,536
/// cells last for a quarter of a second. One that stops to miss may hold some for longer.
const HELD_NS: u64 = 1_000_000_000;

/// See the module.
pub struct CompiledSampler {
    terms: ProbeTerms,
    waiting: Vec<Sample>,
    lost: u64,
    cost: Cost,
}

impl CompiledSampler {
    /// Finds the caches that are modelled.
    ///
    /// # Errors
    /// [`SamplerError::Unavailable`] where the kernel does not describe this machine's caches and
    /// the configuration names none.
    pub fn open(config: &Config) -> Result<CompiledSampler, SamplerError> {
        let caches = match config.caches {
            Some(Caches(caches)) => caches,
            None => {
                terms::of_machine(Path::new("/sys")).ok_or_else(|| SamplerError::Unavailable {
                    kind: Kind::Compiled,
                    why: "the kernel does not describe the caches".to_owned(),
                    remedy: "name them: --caches 32K/8,1M/16,32M/16".to_owned(),
                })?
            }
        };
        Ok(CompiledSampler {
            terms: ProbeTerms { shift: config.rate.shift(), caches },
            waiting: Vec::new(),
            lost: 0,
            cost: Cost::default(),
        })
    }
}

impl Sampler for CompiledSampler {
    fn kind(&self) -> Kind {
        Kind::Compiled
    }

    fn method(&self) -> Method {
        Method::Misses
    }

    fn attach(&mut self, _pid: u32) -> Result<(), SamplerError> {
        Ok(())
    }

    fn detach(&mut self, _pid: u32) {}

    fn watch(&mut self, _pid: u32, _ranges: &[std::ops::Range<u64>]) {}

    fn probe(&self) -> Option<ProbeTerms> {
        Some(self.terms)
    }

    fn reported(&mut self, samples: &[Sample], lost: u64) {
        self.waiting.extend_from_slice(samples);
        self.lost = self.lost.saturating_add(lost);
    }

    fn drain(&mut self, now: Now, out: &mut Vec<Sample>) -> Drained {
        let samples = self.waiting.len() as u64;
        out.append(&mut self.waiting);
        self.cost.samples += samples;
        self.cost.passes += 1;
        Drained {
            samples,
            lost: std::mem::take(&mut self.lost),
            complete_ns: now.ns.saturating_sub(HELD_NS),
            ..Drained::default()
        }
    }

    fn counters(&mut self) -> Option<Counters> {
        None
    }

    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities {
            reads: Granularity::Exact,
            writes: Granularity::Exact,
            latency: false,
            node: false,
            around: false,
            dirtied: true,
            counters: false,
            source: terms::shown(&self.terms),
            text:
                "Only code that tiercel cc compiled reports its misses; no prefetcher is modelled."
                    .to_owned(),
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_wire::AccessKind;

    fn sample(at_ns: u64) -> Sample {
        Sample {
            from_ns: at_ns,
            until_ns: at_ns,
            pid: 7,
            tid: 8,
            addr: 4096,
            kind: AccessKind::Read,
            latency_ns: None,
            node: None,
            weight: 32,
            around: None,
            cpu: None,
            by: None,
        }
    }

    fn opened() -> CompiledSampler {
        let caches = Some("32K/8,1M/16,4M/16".parse().unwrap());
        CompiledSampler::open(&Config { caches, ..Config::default() }).unwrap()
    }

    #[test]
    fn what_is_reported_comes_out_once_and_in_order() {
        let mut sampler = opened();
        let (now, mut out) = (Now { ns: 5 * HELD_NS, monotonic_ns: 0 }, Vec::new());
        sampler.reported(&[sample(1), sample(2)], 5);
        sampler.reported(&[sample(3)], 0);
        let drained = sampler.drain(now, &mut out);
        assert_eq!((drained.samples, drained.lost, drained.complete_ns), (3, 5, 4 * HELD_NS));
        assert_eq!(sampler.drain(now, &mut out).samples, 0);
        assert_eq!(out, [sample(1), sample(2), sample(3)]);
    }

    #[test]
    fn programs_are_asked_for_one_line_in_32() {
        let terms = opened().probe().unwrap();
        assert_eq!((terms.shift, terms.caches[1].sets), (5, 1024));
        let seen = opened().capabilities();
        assert_eq!(seen.source, "1/32 of all lines, through caches 32K/8,1M/16,4M/16");
    }
}
