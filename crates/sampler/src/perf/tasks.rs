//! The threads of a process, the CPUs of the machine, and their frequency. In: /proc, /sys. Out:
//! numbers. Knows nothing of events.

use std::fs;

/// Current threads of a process; empty when it is gone.
pub fn threads(pid: u32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// CPUs that are online.
pub fn online_cpus() -> Vec<i32> {
    fs::read_to_string("/sys/devices/system/cpu/online").map_or_else(|_| vec![0], |s| list(&s))
}

/// Core cycles per nanosecond, for latencies in cycles; `None` when neither source is available.
pub fn cycles_per_ns() -> Option<f64> {
    let khz = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    if let Some(khz) = khz.ok().and_then(|text| text.trim().parse::<f64>().ok()) {
        return Some(khz / 1e6);
    }
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split(':').nth(1)?.trim().parse::<f64>().ok().map(|mhz| mhz / 1e3)
}

/// Parses `0-3,8,10-11`.
fn list(text: &str) -> Vec<i32> {
    let mut out = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            out.extend(first..=last);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(list("0\n"), [0]);
        assert_eq!(list("\n"), [0; 0]);
    }

    #[test]
    fn a_vanished_process_has_no_threads() {
        assert!(threads(std::process::id()).contains(&(std::process::id() as i32)));
        assert_eq!(threads(u32::MAX), [0; 0]);
    }
}
