//! Which memory of a process can be tiered by OS page.
//! In: the text of /proc/PID/maps and of smaps_rollup. Out: [`Area`]s. Knows nothing of objects.

use tiercel_ledger::regions::Area;
use tiercel_wire::maps::Line;

/// Huge OS pages are the units if at least 1 / HUGE_SHARE of the anonymous memory is in them:
/// half. Chosen, not measured.
const HUGE_SHARE: u64 = 2;

/// Private mappings that are memory: neither devices, nor hugetlb, nor the kernel's own.
pub fn areas(maps: &str) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for area in maps.lines().filter_map(area) {
        match areas.last_mut() {
            Some(last) if last.end == area.start && last.of_file == area.of_file => {
                last.end = area.end;
            }
            _ => areas.push(area),
        }
    }
    areas
}

/// Whether most anonymous memory is in huge OS pages, by the text of smaps_rollup.
pub fn is_huge(rollup: &str) -> bool {
    let kib = |key: &str| {
        let line = rollup.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let (anonymous, huge) = (kib("Anonymous:").unwrap_or(0), kib("AnonHugePages:").unwrap_or(0));
    huge > 0 && huge >= anonymous / HUGE_SHARE
}

fn area(line: &str) -> Option<Area> {
    let Line { range, permissions, inode, name, .. } = Line::parse(line)?;
    let of_kernel = name.starts_with("[v") || name.starts_with("/dev/");
    let is_hugetlb = name.starts_with("/anon_hugepage");
    let is_private = permissions.starts_with('r') && permissions.ends_with('p');
    let is_memory = is_private && !of_kernel && !is_hugetlb && !range.is_empty();
    is_memory.then_some(Area { start: range.start, end: range.end, of_file: inode != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0002000 r--p 00000000 fe:00 1234                       /usr/bin/thing
55d0c0002000-55d0c0004000 r-xp 00002000 fe:00 1234                       /usr/bin/thing
55d0c1000000-55d0c1200000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
7f0001000000-7f0001001000 rw-s 00000000 00:01 77                         /dev/shm/shared
7f0001001000-7f0001002000 ---p 00000000 00:00 0
7f0002000000-7f0002200000 rw-p 00000000 00:0f 5                          /anon_hugepage (deleted)
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0                          [stack]
7ffe00022000-7ffe00026000 r--p 00000000 00:00 0                          [vvar]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
nonsense
";

    #[test]
    fn private_memory_is_tiered_and_nothing_else() {
        let area = |start, end, of_file| Area { start, end, of_file };
        let expected = [
            area(0x55d0_c000_0000, 0x55d0_c000_4000, true),
            area(0x55d0_c100_0000, 0x55d0_c120_0000, false),
            area(0x7f00_0000_0000, 0x7f00_0080_0000, false),
            area(0x7ffe_0000_0000, 0x7ffe_0002_1000, false),
        ];
        assert_eq!(areas(MAPS), expected);
        assert_eq!(areas(""), []);
    }

    #[test]
    fn huge_is_half_of_the_anonymous_memory() {
        let rollup = |anonymous: u64, huge: u64| {
            is_huge(&format!("Rss: 9 kB\nAnonymous: {anonymous} kB\nAnonHugePages: {huge} kB\n"))
        };
        assert!(rollup(8192, 4096));
        assert!(!rollup(8192, 2048));
        assert!(!rollup(0, 0));
        assert!(!is_huge(""));
    }
}
