//! Which threads a process has, which CPUs are there, how fast they run.
//! In: /proc, /sys. Out: numbers. Knows nothing of events.

use std::fs;

/// Threads of a process now; empty when it is gone.
pub fn threads(pid: u32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// CPUs that are on line.
pub fn online_cpus() -> Vec<i32> {
    fs::read_to_string("/sys/devices/system/cpu/online").map_or_else(|_| vec![0], |s| list(&s))
}

/// Core cycles in a nanosecond, for latencies that come in cycles; `None` when neither is known.
pub fn cycles_per_ns() -> Option<f64> {
    let khz = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    if let Some(khz) = khz.ok().and_then(|text| text.trim().parse::<f64>().ok()) {
        return Some(khz / 1e6);
    }
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split(':').nth(1)?.trim().parse::<f64>().ok().map(|mhz| mhz / 1e3)
}

/// Reads `0-3,8,10-11`.
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
    fn cpu_lists_are_read() {
        assert_eq!(list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(list("0\n"), [0]);
        assert_eq!(list("\n"), [0; 0]);
    }

    #[test]
    fn this_process_has_threads_and_a_vanished_one_none() {
        assert!(threads(std::process::id()).contains(&(std::process::id() as i32)));
        assert_eq!(threads(u32::MAX), [0; 0]);
    }
}
