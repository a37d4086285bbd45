//! Keeps the daemon's own memory out of the tiers that it manages.
//! In: a machine. Out: memory policies of threads, this process's memory in the slowest tier.
//! Knows nothing of programs.

use tiercel_machine::{Machine, NodeId};
use tiercel_mover::{Errno, Preference, move_own_memory, prefer_for_this_thread};

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

    /// What was written so far.
    pub(crate) fn move_away(&self) -> Result<(), String> {
        unless_absent("move_pages", move_own_memory(&self.better, self.slowest)).map(|_| ())
    }
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
        assert_eq!(unless_absent::<()>("call", Err(Errno(libc::EINVAL))), Ok(None));
        let refused = unless_absent::<()>("call", Err(Errno(libc::EPERM))).unwrap_err();
        assert!(refused.contains("best tier: call: "), "{refused}");
    }
}
