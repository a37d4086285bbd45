//! Whether KVM works here: a device node alone does not show it. In: the cache, the packages. Out:
//! yes or no, tested once per boot of the host. Knows nothing of runs.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use tiercel_machine::{CpuList, Machine, Node, NodeId};

use crate::cache::Cache;
use crate::fetch::Packages;
use crate::qemu::{Acceleration, Qemu, Setup};
use crate::topology::{Size, Topology};
use crate::{Progress, image};

/// Longest test boot: with KVM the guest is up in about a second; emulated KVMs hang or crash.
const BOOT_LIMIT: Duration = Duration::from_secs(8);

/// Whether a guest boots with KVM on this host.
pub(crate) fn works(cache: &Cache, packages: &Packages, progress: &mut Progress<'_>) -> bool {
    let device = "/dev/kvm";
    if fs::OpenOptions::new().read(true).write(true).open(device).is_err() {
        return false;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let verdict = |works: bool| format!("{} {works}\n", boot.trim());
    let memory = cache.path("kvm");
    let known = fs::read_to_string(&memory).unwrap_or_default();
    if let Some(works) = [true, false].into_iter().find(|w| known == verdict(*w)) {
        return works;
    }
    progress("lab: trying KVM");
    let works = boots(packages).unwrap_or(false);
    progress(if works { "lab: KVM works" } else { "lab: KVM does not boot a guest; using TCG" });
    // Without the cached answer the test is only repeated.
    let _ = fs::write(&memory, verdict(works));
    works
}

fn boots(packages: &Packages) -> Result<bool> {
    let mut node = Node::new(NodeId(0), 1 << 30);
    node.cpus = CpuList::new(vec![0]);
    let machine = Machine { name: "probe".to_owned(), nodes: vec![node], ..Machine::default() };
    let topology = Topology::of(&machine, Size { memory_bytes: 512 << 20, cpus: 1 })?;
    let mut bytes = image::base(packages)?;
    let mut payload = image::Payload::default();
    payload.text("lab/command", 0o644, "true\n");
    bytes.extend(payload.finish(&[]));
    let (mut qemu, _) = Qemu::start(&Setup {
        packages,
        topology: &topology,
        acceleration: Acceleration::Kvm,
        image: &bytes,
        ports: &[],
        interactive: false,
        timing: None,
    })?;
    let ended = qemu.wait_until(Some(Instant::now() + BOOT_LIMIT))?;
    Ok(ended.is_some_and(|status| status.success()))
}
