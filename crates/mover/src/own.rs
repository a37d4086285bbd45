//! Where the daemon's own memory goes: not where the programs' memory should be.
//! In: a node. Out: the calling thread's memory policy. Knows nothing of programs.

use tiercel_machine::NodeId;

use crate::syscall::Errno;

/// linux/mempolicy.h: this node first, others when it is full.
const MPOL_PREFERRED: libc::c_int = 1;
/// Nodes the kernel can be built for (CONFIG_NODES_SHIFT is at most 10).
const NODES_MAX: usize = 1024;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// Lets what the calling thread touches first from now on come from `node` as long as there is
/// room, and so for threads it starts. Fails where the kernel has no such node or forbids the call.
pub fn prefer_for_this_thread(node: NodeId) -> Result<(), Errno> {
    let at = usize::from(node.0);
    let mut mask: [libc::c_ulong; NODES_MAX / WORD_BITS] = [0; NODES_MAX / WORD_BITS];
    let word = mask.get_mut(at / WORD_BITS).ok_or(Errno(libc::EINVAL))?;
    *word |= 1 << (at % WORD_BITS);
    // SAFETY: the kernel reads NODES_MAX bits of `mask`, which has as many (its count includes one
    // more than it reads), and changes nothing but this thread's policy for future OS pages.
    let result = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, MPOL_PREFERRED, mask.as_ptr(), NODES_MAX + 1)
    };
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
}
