//! Opens samplers by kind and says which kinds work here and what to do about the others.
//! In: a kind, the configuration. Out: a [`Sampler`], or [`Finding`]s for `tiercel doctor`.
//! Knows nothing of how samplers work.

use tiercel_machine::Finding;

use crate::{Config, Kind, Sampler, SamplerError, Source, perf};

/// What [`Kind::Auto`] tries, best first. See docs/samplers.md for why.
const ORDER: [Kind; 1] = [Kind::Perf];

/// Opens a sampler.
///
/// # Errors
/// Says why this kind does not work here; for [`Kind::Auto`], why none does.
pub fn open(kind: Kind, config: &Config) -> Result<Box<dyn Sampler>, SamplerError> {
    match kind {
        Kind::Auto => open_best(config),
        Kind::Perf => Ok(Box::new(perf::PerfSampler::open(config)?)),
        Kind::Bpf | Kind::Probe => Err(SamplerError::Unavailable {
            kind,
            why: "not built yet".to_owned(),
            remedy: String::new(),
        }),
    }
}

/// What works here, for `tiercel doctor`: one finding per kind, with what to do about it.
pub fn support() -> Vec<Finding> {
    let perf = match perf::PerfSampler::open(&Config::default()) {
        Ok(sampler) => Finding::ok("sampler-perf", sampler.sees().source),
        Err(error) => {
            let faults = Config { source: Source::PageFaults, ..Config::default() };
            match perf::PerfSampler::open(&faults) {
                Ok(_) => Finding::degraded(
                    "sampler-perf",
                    format!("page faults only: {error}"),
                    "sampler.source = \"page-faults\" sees first touches; heat comes from probe",
                ),
                Err(_) => Finding::absent("sampler-perf", error.to_string(), "use probe"),
            }
        }
    };
    vec![perf]
}

fn open_best(config: &Config) -> Result<Box<dyn Sampler>, SamplerError> {
    let mut reasons = Vec::new();
    for kind in ORDER {
        match open(kind, config) {
            Ok(sampler) => return Ok(sampler),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(SamplerError::Unavailable {
        kind: Kind::Auto,
        why: reasons.join("; "),
        remedy: "placement without heat still works".to_owned(),
    })
}
