//! Finds which events work here, by trying them on the current thread. In: the configuration,
//! /proc/cpuinfo, /sys/bus/event_source. Out: [`Chosen`] events, or why there are none. Knows
//! nothing of the processes that will be observed.

use std::fs;
use std::io;

use super::attr::{self, Attr, flag, sample_type};
use super::events::{self, Decode, Event, Pmu};
use crate::{Config, Kind, SamplerError, Source};

/// An event that opened here.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Its entry in the table.
    pub event: &'static Event,
    /// How to open it; the period is set whenever it is opened.
    pub attr: Attr,
}

/// The events of one sampler, and what they share.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Never empty.
    pub events: Vec<Chosen>,
    /// Fields of every sample in the rings.
    pub sample_type: u64,
    /// Whether the PMU writes packets into AUX areas.
    pub aux: bool,
}

/// Picks the events for `config` on this machine.
///
/// # Errors
/// [`SamplerError::Unavailable`] without a usable PMU, [`SamplerError::Permission`] when
/// `perf_event_paranoid` forbids.
pub fn choose(config: &Config) -> Result<Choice, SamplerError> {
    let wanted = wanted(config)?;
    let aux = wanted.iter().any(|event| event.decode == Decode::Spe);
    let sample_type = fields(&wanted);
    let mut events = Vec::new();
    let mut first_error = None;
    for event in wanted {
        match try_event(event, sample_type) {
            Ok(attr) => events.push(Chosen { event, attr }),
            Err(error) => first_error = first_error.or(Some((event, error))),
        }
    }
    match first_error {
        Some((event, error)) if events.is_empty() => Err(refusal(event, error)),
        _ => Ok(Choice { events, sample_type, aux }),
    }
}

/// Events per sample of an event, multiplied by `factor`. Every page fault is a sample.
pub fn period(config: &Config, event: &Event, factor: u64) -> u64 {
    let base = if event.decode == Decode::Fault { 1 } else { config.period };
    base.saturating_mul(event.period_factor).saturating_mul(factor)
}

/// `kernel.perf_event_paranoid`; `None` without perf events in the kernel.
pub fn paranoid() -> Option<i32> {
    fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

/// Explains why an event did not open on this machine.
pub fn refusal(event: &Event, error: io::Error) -> SamplerError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => SamplerError::Permission {
            what: format!("perf event {}", event.name),
            remedy: format!(
                "kernel.perf_event_paranoid is {}, 2 is needed (sysctl kernel.perf_event_paranoid=2), \
                 or CAP_PERFMON; containers must allow perf_event_open in their seccomp profile",
                paranoid().map_or("absent".to_owned(), |level| level.to_string())
            ),
        },
        Some(libc::EINVAL) => SamplerError::Unavailable {
            kind: Kind::Perf,
            why: format!("the kernel does not support event {} in this form", event.name),
            remedy: "Linux 5.13 is needed (inherit_thread), 6.12 for ibs_op without root".into(),
        },
        _ => SamplerError::Unavailable {
            kind: Kind::Perf,
            why: format!("event {} does not open: {error}", event.name),
            remedy: "virtual machines need a virtual PMU (KVM: -cpu host,pmu=on)".into(),
        },
    }
}

fn wanted(config: &Config) -> Result<Vec<&'static Event>, SamplerError> {
    let unavailable = |why: String, remedy: &str| SamplerError::Unavailable {
        kind: Kind::Perf,
        why,
        remedy: remedy.to_owned(),
    };
    if config.source == Source::PageFaults {
        return Ok(vec![&events::PAGE_FAULTS]);
    }
    if !config.events.is_empty() {
        let find = |name: &String| events::NAMED.iter().find(|event| event.name == name);
        return config
            .events
            .iter()
            .map(|name| {
                find(name).ok_or_else(|| {
                    let known: Vec<_> = events::NAMED.iter().map(|event| event.name).collect();
                    let remedy = format!("known: {}", known.join(", "));
                    unavailable(format!("no event is named {name}"), &remedy)
                })
            })
            .collect();
    }
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let (vendor, family, model) = processor(&text);
    let events = events::for_processor(&vendor, family, model);
    if events.is_empty() {
        return Err(unavailable(
            format!("no memory event is known for {vendor} family {family} model {model}"),
            "choose another sampler",
        ));
    }
    Ok(events.iter().collect())
}

/// Vendor, family and model of the first processor in the text of /proc/cpuinfo.
fn processor(cpuinfo: &str) -> (String, u32, u32) {
    let value = |key: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(key))?;
        line.split(':').nth(1).map(str::trim)
    };
    let number = |key| value(key).and_then(|text| text.parse().ok()).unwrap_or(0);
    match value("vendor_id") {
        Some(vendor) => (vendor.to_owned(), number("cpu family"), number("model")),
        None if value("CPU implementer").is_some() => ("Arm".to_owned(), 0, 0),
        None => ("unknown".to_owned(), 0, 0),
    }
}

fn fields(events: &[&Event]) -> u64 {
    let base = sample_type::IDENTIFIER | sample_type::TID | sample_type::TIME | sample_type::ADDR;
    let any = |decode| events.iter().any(|event| event.decode == decode);
    let mut fields = base;
    if any(Decode::LoadMiss) || any(Decode::Store) {
        fields |= sample_type::WEIGHT | sample_type::DATA_SRC;
    }
    if any(Decode::Ibs) {
        fields |= sample_type::RAW;
    }
    // A software event with PERIOD in its fields fires every time, whatever its period is.
    if !any(Decode::Fault) {
        fields |= sample_type::PERIOD;
    }
    fields
}

/// Opens the event on this thread, trying the best form first; returns the form that worked.
fn try_event(event: &Event, sample_type: u64) -> io::Result<Attr> {
    let type_of = |name: &str| {
        let path = format!("/sys/bus/event_source/devices/{name}/type");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let absent = || io::Error::new(io::ErrorKind::NotFound, "this machine has no such PMU");
    let kind = events::attr_type(event.pmu, type_of).ok_or_else(absent)?;
    let mut attr = Attr::user_mode(kind, event.config[0]);
    (attr.config1, attr.config2) = (event.config[1], event.config[2]);
    attr.sample_type = sample_type;
    attr.period = 1 << 20; // Any period will do: it is closed at once.
    attr.flags |= flag::INHERIT | flag::INHERIT_THREAD | events::precise_flags(event);
    let tried = attr::open(&attr, 0, -1);
    match tried {
        Ok(_) => Ok(attr),
        // IBS before Linux 6.12 cannot leave the kernel out; its samples are dropped on arrival.
        Err(error)
            if event.pmu == Pmu::Named("ibs_op") && error.raw_os_error() == Some(libc::EINVAL) =>
        {
            attr.config2 = 0;
            attr.flags &= !(flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV);
            attr::open(&attr, 0, -1).map(|_| attr)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_distinguished() {
        let amd = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\
                   model name\t: AMD EPYC\n";
        assert_eq!(processor(amd), ("AuthenticAMD".to_owned(), 25, 17));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(processor(arm), ("Arm".to_owned(), 0, 0));
        assert_eq!(processor(""), ("unknown".to_owned(), 0, 0));
    }

    #[test]
    fn an_unknown_event_is_named_with_the_known_ones() {
        let config = Config { events: vec!["mem_load.l9_miss".to_owned()], ..Config::default() };
        let said = choose(&config).expect_err("no such event").to_string();
        assert!(said.contains("mem_load.l9_miss") && said.contains("ibs_op"), "{said}");
    }

    #[test]
    fn refusals_come_with_a_remedy() {
        let said = |errno| refusal(&events::L3_MISS, io::Error::from_raw_os_error(errno));
        let denied = said(libc::EACCES);
        assert!(matches!(denied, SamplerError::Permission { .. }), "{denied:?}");
        assert!(denied.to_string().contains("perf_event_paranoid"), "{denied}");
        let absent = said(libc::ENOENT).to_string();
        assert!(absent.contains("virtual PMU"), "{absent}");
        assert!(said(libc::EINVAL).to_string().contains("5.13"));
    }
}
