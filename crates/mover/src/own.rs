//! Where the daemon's own memory goes: not where the programs' memory should be.
//! In: a node. Out: the calling thread's memory policy, and this process's memory elsewhere. Knows
//! nothing of programs.

use std::ops::Range;

use tiercel_machine::NodeId;

use crate::syscall::{Errno, Kernel, Linux, STATUS_UNTOUCHED};

/// The calling process, as the kernel's calls name it.
const THIS: u32 = 0;

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

/// Moves OS pages of these ranges of this process from some nodes to another, but those that it
/// shares with other processes. Returns how many did not move.
pub fn move_own_memory(ranges: &[Range<u64>], from: &[NodeId], to: NodeId) -> Result<u64, Errno> {
    mask_of(&[to])?;
    let mut kernel = Linux::default();
    let step = usize::try_from(kernel.os_page_bytes()).expect("an OS page fits into memory");
    let all: Vec<u64> = ranges.iter().flat_map(|range| range.clone().step_by(step)).collect();
    let mut nodes = vec![STATUS_UNTOUCHED; all.len()];
    kernel.move_pages(THIS, &all, None, &mut nodes)?;
    let is_there = |status: i32| from.iter().any(|node| i32::from(node.0) == status);
    let there = all.iter().zip(&nodes).filter(|(_, status)| is_there(**status));
    let there: Vec<u64> = there.map(|(page, _)| *page).collect();
    if there.is_empty() {
        return Ok(0);
    }
    kernel.move_pages(THIS, &there, Some(to), &mut nodes[..there.len()])
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
        let start = bytes.as_ptr() as u64;
        let own = start..start + bytes.len() as u64;
        let own = std::slice::from_ref(&own);
        let anywhere: Vec<NodeId> = (0..64).map(NodeId).collect();
        let moved = move_own_memory(own, &anywhere, NodeId(0));
        assert!(matches!(moved, Ok(_) | Err(Errno(libc::EPERM | libc::ENOSYS))), "{moved:?}");
        assert!(bytes.iter().all(|byte| *byte == 7));
        assert!(move_own_memory(own, &anywhere, NodeId(1000)).is_err());
        assert_eq!(move_own_memory(own, &anywhere, NodeId(5000)), Err(Errno(libc::EINVAL)));
    }
}
