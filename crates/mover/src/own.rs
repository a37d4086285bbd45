//! Where the daemon's own memory goes: not where the programs' memory should be.
//! In: a node. Out: the calling thread's memory policy, and this process's memory elsewhere. Knows
//! nothing of programs.

use std::ops::Range;

use tiercel_machine::NodeId;

use crate::syscall::{Errno, Kernel, Linux, STATUS_UNTOUCHED};

/// The calling process, as the kernel's calls name it.
const THIS: u32 = 0;
/// Longer mappings are reserved for later, not written: the stack of a thread has 8 MiB.
const MAPPING_BYTES_MAX: u64 = 64 << 20;

/// linux/mempolicy.h: this node first, others when it is full.
const MPOL_PREFERRED: libc::c_int = 1;
/// Nodes the kernel can be built for (CONFIG_NODES_SHIFT is at most 10).
const NODES_MAX: usize = 1024;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

type Mask = [libc::c_ulong; NODES_MAX / WORD_BITS];

/// Lets what the calling thread touches first from now on come from `node` as long as there is
/// room, and so for threads it starts. Fails where the kernel has no such node or forbids the call.
pub fn prefer_for_this_thread(node: NodeId) -> Result<(), Errno> {
    set_policy(MPOL_PREFERRED, &mask_of(&[node])?)
}

/// The calling thread's policy as it was: it returns when this is dropped.
#[derive(Debug)]
pub struct Preference {
    mode: libc::c_int,
    mask: Mask,
}

impl Preference {
    /// As [`prefer_for_this_thread`], until the result is dropped. Threads that are started
    /// meanwhile keep the preference.
    pub fn of(node: NodeId) -> Result<Preference, Errno> {
        let (mut mode, mut mask): (libc::c_int, Mask) = (0, [0; NODES_MAX / WORD_BITS]);
        // SAFETY: the kernel writes an int and NODES_MAX bits, which `mode` and `mask` have.
        let result = unsafe {
            let (mode, mask) = (&raw mut mode, mask.as_mut_ptr());
            libc::syscall(libc::SYS_get_mempolicy, mode, mask, NODES_MAX + 1, 0, 0)
        };
        if result != 0 {
            return Err(Errno::last());
        }
        prefer_for_this_thread(node)?;
        Ok(Preference { mode, mask })
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // What was set before can be set again, unless its nodes have gone: then there is no policy
        // that could be meant.
        let _ = set_policy(self.mode, &self.mask);
    }
}

/// Moves what this process wrote so far, and shares with no other, from some nodes to another.
/// Pages of its files stay: they cost ten times as much to move as its own memory, and the kernel
/// drops them when memory is short. Returns how many OS pages did not move.
pub fn move_own_memory(from: &[NodeId], to: NodeId) -> Result<u64, Errno> {
    mask_of(&[to])?;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| Errno::last())?;
    let mut kernel = Linux::default();
    let step = usize::try_from(kernel.os_page_bytes()).expect("an OS page fits into memory");
    let mut pages: Vec<u64> = written(&maps).into_iter().flat_map(|r| r.step_by(step)).collect();
    let mut nodes = vec![STATUS_UNTOUCHED; pages.len()];
    kernel.move_pages(THIS, &pages, None, &mut nodes)?;
    let is_there = |status: &i32| from.iter().any(|node| i32::from(node.0) == *status);
    let mut is_there = nodes.iter().map(is_there);
    pages.retain(|_| is_there.next().unwrap_or(false));
    if pages.is_empty() {
        return Ok(0);
    }
    kernel.move_pages(THIS, &pages, Some(to), &mut nodes[..pages.len()])
}

/// Memory that its process may have written, by the text of its maps: private and writable, or
/// just below such a mapping of the same file, which is what the linker wrote before it took the
/// permission away.
fn written(maps: &str) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    let mut below: Option<(Range<u64>, &str)> = None;
    for (range, permissions, inode) in maps.lines().filter_map(mapping) {
        let is_writable = permissions.starts_with("rw") && permissions.ends_with('p');
        let is_bounded = range.end - range.start <= MAPPING_BYTES_MAX;
        if is_writable && is_bounded {
            let relocated = below
                .filter(|(below, of)| below.end == range.start && *of == inode && inode != "0");
            all.extend(relocated.map(|(below, _)| below));
            all.push(range.clone());
        }
        below = (permissions == "r--p" && is_bounded).then_some((range, inode));
    }
    all
}

/// Addresses, permissions and inode of a line of maps.
fn mapping(line: &str) -> Option<(Range<u64>, &str, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(start)?..hex(end)?, fields.next()?, fields.nth(2)?))
}

fn mask_of(nodes: &[NodeId]) -> Result<Mask, Errno> {
    let mut mask: Mask = [0; NODES_MAX / WORD_BITS];
    for node in nodes {
        let at = usize::from(node.0);
        let word = mask.get_mut(at / WORD_BITS).ok_or(Errno(libc::EINVAL))?;
        *word |= 1 << (at % WORD_BITS);
    }
    Ok(mask)
}

fn set_policy(mode: libc::c_int, mask: &Mask) -> Result<(), Errno> {
    let mask = if mode == 0 { std::ptr::null() } else { mask.as_ptr() };
    // SAFETY: the kernel reads NODES_MAX bits of `mask`, which has as many (its count includes one
    // more than it reads), or none, and changes nothing but this thread's policy for future OS
    // pages.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, NODES_MAX + 1) };
    if result == 0 { Ok(()) } else { Err(Errno::last()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_a_node_it_has_and_no_other() {
        let answers = std::thread::spawn(|| {
            [0, 1023, 5000].map(|number| prefer_for_this_thread(NodeId(number)))
        });
        let [first, absent, impossible] = answers.join().expect("no panic");
        assert!(matches!(first, Ok(()) | Err(Errno(libc::EPERM | libc::ENOSYS))), "{first:?}");
        assert!(absent.is_err());
        assert_eq!(impossible, Err(Errno(libc::EINVAL)));
    }

    #[test]
    fn a_preference_ends_with_its_value() {
        let policy = || std::fs::read_to_string("/proc/thread-self/numa_maps");
        let seen = std::thread::spawn(move || {
            let before = policy();
            let Ok(preference) = Preference::of(NodeId(0)) else { return None };
            let during = policy().ok()?;
            drop(preference);
            Some((before.ok()?, during, policy().ok()?))
        });
        // Without NUMA the kernel has neither the call nor the file.
        let Some((before, during, after)) = seen.join().expect("no panic") else { return };
        let preferred = |maps: &str| maps.lines().filter(|line| line.contains("prefer")).count();
        assert!(preferred(&during) > preferred(&before), "{during}");
        assert_eq!(preferred(&after), preferred(&before), "{after}");
    }

    #[test]
    fn own_memory_moves_between_nodes_that_exist_only() {
        let bytes = vec![7u8; 1 << 16];
        let moved = move_own_memory(&[NodeId(0)], NodeId(0));
        assert!(matches!(moved, Ok(_) | Err(Errno(libc::EPERM | libc::ENOSYS))), "{moved:?}");
        assert!(bytes.iter().all(|byte| *byte == 7));
        assert!(move_own_memory(&[NodeId(0)], NodeId(1000)).is_err());
        assert_eq!(move_own_memory(&[NodeId(0)], NodeId(5000)), Err(Errno(libc::EINVAL)));
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
