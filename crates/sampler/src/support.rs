//! Opens samplers by kind and reports which kinds work here and what to do about the others. In: a
//! kind, the configuration. Out: a [`Sampler`], or [`Finding`]s for `tiercel doctor`. Knows nothing
//! of how samplers work.

use tiercel_machine::Finding;

use crate::{Config, Kind, Sampler, SamplerError, Source, compiled, emulator, hint, perf, probe};

/// What [`Kind::Auto`] tries, best first. See docs/samplers.md for why.
const ORDER: [Kind; 4] = [Kind::Emulator, Kind::Perf, Kind::Bpf, Kind::Probe];

/// Opens a sampler.
///
/// # Errors
/// The reason why this kind does not work here; for [`Kind::Auto`], why none does.
pub fn open(kind: Kind, config: &Config) -> Result<Box<dyn Sampler>, SamplerError> {
    hint::restore();
    match kind {
        Kind::Auto => open_best(config),
        Kind::Emulator => Ok(Box::new(emulator::EmulatorSampler::open(config)?)),
        Kind::Perf => Ok(Box::new(perf::PerfSampler::open(config)?)),
        Kind::Probe => Ok(Box::new(probe::ProbeSampler::open(config)?)),
        Kind::Bpf => open_bpf(config),
        Kind::Compiled => Ok(Box::new(compiled::CompiledSampler::open(config)?)),
        Kind::Hint => Ok(Box::new(hint::HintSampler::open(config)?)),
        Kind::None => Err(SamplerError::Unavailable {
            kind,
            why: "none was requested".to_owned(),
            remedy: String::new(),
        }),
    }
}

/// What works here, for `tiercel doctor`: a finding for each kind, with a remedy. The finding of
/// the emulator exists only in timed guests.
pub fn support() -> Vec<Finding> {
    let everywhere = [perf_support(), bpf_support(), probe_support(), hint_support()];
    emulator::support().into_iter().chain(everywhere).collect()
}

fn perf_support() -> Finding {
    let error = match perf::PerfSampler::open(&Config::default()) {
        Ok(sampler) => return Finding::ok("sampler-perf", sampler.capabilities().source),
        Err(error) => error.to_string(),
    };
    let faults = Config { source: Source::PageFaults, ..Config::default() };
    match perf::PerfSampler::open(&faults) {
        Ok(_) => Finding::degraded(
            "sampler-perf",
            format!("first touches only: {error}"),
            "heat comes from the probe; sampling.source = \"page-faults\" sees first touches",
        ),
        Err(_) => Finding::absent("sampler-perf", error, "the probe sampler works without"),
    }
}

#[cfg(feature = "bpf")]
fn open_bpf(config: &Config) -> Result<Box<dyn Sampler>, SamplerError> {
    Ok(Box::new(crate::bpf::BpfSampler::open(config)?))
}

#[cfg(not(feature = "bpf"))]
fn open_bpf(_config: &Config) -> Result<Box<dyn Sampler>, SamplerError> {
    Err(SamplerError::Unavailable {
        kind: Kind::Bpf,
        why: "this binary was built without BPF".to_owned(),
        remedy: "build with --features bpf (needs clang, libelf-dev, zlib1g-dev)".to_owned(),
    })
}

fn bpf_support() -> Finding {
    const NAME: &str = "sampler-bpf";
    let faults = Config { source: Source::PageFaults, ..Config::default() };
    match (open_bpf(&Config::default()), open_bpf(&faults)) {
        (Ok(sampler), _) => Finding::ok(NAME, sampler.capabilities().source),
        (Err(error), Ok(_)) => Finding::degraded(
            NAME,
            format!("first touches only: {error}"),
            "heat comes from the probe sampler",
        ),
        (Err(_), Err(error)) => {
            Finding::absent(NAME, error.to_string(), "perf and probe do without")
        }
    }
}

fn probe_support() -> Finding {
    const NAME: &str = "sampler-probe";
    match (probe::ProbeSampler::open(&Config::default()), probe::write_tracking()) {
        (Err(error), _) => Finding::absent(NAME, error.to_string(), "mount /proc without hidepid"),
        (Ok(_), Ok(())) => {
            Finding::ok(NAME, "writes by OS page (userfaultfd), reads by mapping (clear_refs)")
        }
        (Ok(_), Err(error)) => Finding::degraded(
            NAME,
            format!("writes and reads by mapping only: userfaultfd: {error}"),
            "Linux 6.7 is needed; containers must allow userfaultfd in their seccomp profile",
        ),
    }
}

fn hint_support() -> Finding {
    const NAME: &str = "sampler-hint";
    match hint::support() {
        Ok(found) => Finding::ok(NAME, found),
        Err(error) if hint::is_built_in() => {
            Finding::degraded(NAME, error.to_string(), "only OS-page tiering uses it")
        }
        Err(error) => Finding::absent(NAME, error.to_string(), "only OS-page tiering uses it"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_opens_something_and_every_kind_is_reported_on() {
        let sampler =
            open(Kind::Auto, &Config::default()).expect("probe works wherever /proc is mounted");
        assert!(ORDER.contains(&sampler.kind()));
        let names: Vec<_> = support().into_iter().map(|finding| finding.name).collect();
        for kind in &ORDER[1..] {
            assert!(names.contains(&format!("sampler-{}", kind.name())), "{names:?}");
        }
    }

    #[test]
    fn every_failure_has_a_remedy() {
        for finding in support() {
            let fine = finding.standing == tiercel_machine::Standing::Ok;
            assert!(fine || !finding.remedy.is_empty(), "{finding:?}");
        }
    }
}
