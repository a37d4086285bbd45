//! Keeps the daemon's own memory out of the tiers that it manages.
//! In: a machine. Out: memory policies of threads, this process's memory in the slowest tier.
//! Knows nothing of programs.

use std::ops::Range;

use tiercel_machine::{Machine, NodeId};
use tiercel_mover::{Errno, Preference, move_own_memory, prefer_for_this_thread};
use tiercel_wire::maps::Line;

/// Longer mappings are reserved for later, not written: the stack of a thread has 8 MiB.
const MAPPING_BYTES_MAX: u64 = 64 << 20;

/// Where own memory belongs.
pub(crate) struct OwnMemory {
    better: Vec<NodeId>,
    slowest: NodeId,
}

impl OwnMemory {
    /// `None` where there is one tier.
    pub(crate) fn of(machine: &Machine) -> Option<OwnMemory> {
        let tiers = machine.tiers();
        let (slowest, better) = tiers.split_last()?;
        let better: Vec<_> = better.iter().flat_map(|tier| tier.nodes.clone()).collect();
        let slowest = *slowest.nodes.first()?;
        (!better.is_empty()).then_some(OwnMemory { better, slowest })
    }

    /// What the calling thread touches from now on, and threads that it starts.
    pub(crate) fn prefer(&self) -> Result<(), String> {
        unless_absent("set_mempolicy", prefer_for_this_thread(self.slowest)).map(|_| ())
    }

    /// The same as long as the result lives.
    pub(crate) fn prefer_for_now(&self) -> Result<Option<Preference>, String> {
        unless_absent("set_mempolicy", Preference::of(self.slowest))
    }

    /// What was written so far. Pages of files stay: they cost ten times as much to move as the
    /// rest, and the kernel drops them when memory is short.
    pub(crate) fn move_away(&self) -> Result<(), String> {
        let maps = std::fs::read_to_string("/proc/self/maps");
        let maps = maps.map_err(|error| format!("cannot read /proc/self/maps: {error}"))?;
        let moved = move_own_memory(&written(&maps), &self.better, self.slowest);
        unless_absent("move_pages", moved).map(|_| ())
    }
}

/// Memory that its process may have written, by the text of its maps: private and writable, or
/// just below such a mapping of the same file, which is what the linker wrote before it took the
/// permission away.
fn written(maps: &str) -> Vec<Range<u64>> {
    let lines = maps.lines().filter_map(Line::parse);
    let bounded = lines.filter(|line| line.range.end - line.range.start <= MAPPING_BYTES_MAX);
    let mut all = Vec::new();
    let mut below: Option<Line> = None;
    for line in bounded {
        if line.permissions.starts_with("rw") && line.permissions.ends_with('p') {
            let relocated = below.filter(|below| {
                below.permissions == "r--p"
                    && below.range.end == line.range.start
                    && below.inode == line.inode
                    && line.inode != 0
            });
            all.extend(relocated.map(|below| below.range));
            all.push(line.range.clone());
        }
        below = Some(line);
    }
    all
}

/// `None` where the kernel does not have the nodes: the machine is a description of another one.
fn unless_absent<T>(call: &str, result: Result<T, Errno>) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno(libc::EINVAL | libc::ENODEV)) => Ok(None),
        Err(errno) => Err(format!(
            "cannot keep the daemon's own memory out of the best tier: {call}: {errno}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_belongs_to_the_slowest_tier() {
        let of = |name: &str| OwnMemory::of(&Machine::builtin(name).unwrap().unwrap());
        let own = of("spr-cxl").expect("two tiers");
        assert_eq!((own.better, own.slowest), (vec![NodeId(0)], NodeId(1)));
    }

    #[test]
    fn what_the_kernel_refuses_is_reported_but_for_nodes_that_it_does_not_have() {
        for absent in [libc::EINVAL, libc::ENODEV] {
            assert_eq!(unless_absent::<()>("call", Err(Errno(absent))), Ok(None));
        }
        let refused = unless_absent::<()>("call", Err(Errno(libc::EPERM))).unwrap_err();
        assert!(refused.contains("best tier: call: "), "{refused}");
    }

    #[test]
    fn what_a_process_wrote_is_private_and_writable_or_was() {
        let maps = "\
55d0c0000000-55d0c0002000 r--p 00000000 fe:00 1234                       /usr/bin/thing
55d0c0002000-55d0c0004000 r-xp 00002000 fe:00 1234                       /usr/bin/thing
55d0c0004000-55d0c0005000 r--p 00004000 fe:00 1234                       /usr/bin/thing
55d0c0005000-55d0c0006000 rw-p 00005000 fe:00 1234                       /usr/bin/thing
55d0c1000000-55d0c1002000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0004001000 rw-p 00000000 00:00 0
7f0010000000-7f0010001000 r--p 00000000 00:00 0
7f0010001000-7f0010002000 rw-p 00000000 00:00 0
7f0011000000-7f0011001000 rw-s 00000000 00:01 77                         /dev/shm/shared
nonsense
";
        let expected = [
            0x55d0_c000_4000..0x55d0_c000_5000,
            0x55d0_c000_5000..0x55d0_c000_6000,
            0x55d0_c100_0000..0x55d0_c100_2000,
            0x7f00_1000_1000..0x7f00_1000_2000,
        ];
        assert_eq!(written(maps), expected);
    }
}
