//! What this kernel, its settings and our privileges mean for moving, for `tiercel doctor`.
//! In: /proc and /sys below a root, and a [`Kernel`] to try. Out: [`Finding`]s.
//! Knows nothing of printing.

use std::path::Path;

use tiercel_machine::{CpuList, Finding, NodeId};

use crate::syscall::{Errno, Kernel, Linux, STATUS_UNTOUCHED};

/// Number of the capability in linux/capability.h: its bit in the CapEff mask.
const CAP_SYS_PTRACE: u32 = 19;

/// Everything about moving on this machine, most important first.
pub fn support() -> Vec<Finding> {
    support_below(Path::new("/"), &mut Linux::default())
}

/// The same for any root and kernel.
pub fn support_below(root: &Path, kernel: &mut dyn Kernel) -> Vec<Finding> {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let status = text("proc/self/status").unwrap_or_default();
    let online = text("sys/devices/system/node/has_memory");
    let online = online.and_then(|list| CpuList::parse(&list).ok()).unwrap_or_default();
    vec![
        nodes(&online),
        move_pages(kernel),
        other_processes(&status),
        mems_allowed(&status, &online),
        numa_balancing(text("proc/sys/kernel/numa_balancing").as_deref()),
        demotion(text("sys/kernel/mm/numa/demotion_enabled").as_deref()),
        copy_device(&root.join("dev/dsa")),
    ]
}

fn nodes(online: &CpuList) -> Finding {
    const NAME: &str = "memory-nodes";
    match online.len() {
        0 | 1 => Finding::degraded(
            NAME,
            "one node with memory: there is nowhere to move to, moves are modelled",
            "run on a machine with several kinds of memory, or in the lab: tiercel lab",
        ),
        count => Finding::ok(NAME, format!("{count} nodes with memory ({online})")),
    }
}

/// Asks where a byte of this process is: the call itself may be missing or forbidden.
fn move_pages(kernel: &mut dyn Kernel) -> Finding {
    const NAME: &str = "move-pages";
    let probe = [1u8; 1];
    let addr = probe.as_ptr() as u64 & !(kernel.os_page_bytes() - 1);
    let mut status = [STATUS_UNTOUCHED];
    match kernel.move_pages(std::process::id(), &[addr], None, &mut status) {
        Ok(_) => match u16::try_from(status[0]) {
            Ok(node) => {
                Finding::ok(NAME, format!("works on our own memory (node {})", NodeId(node)))
            }
            Err(_) => Finding::degraded(
                NAME,
                format!("answers {} for memory that is there", status[0]),
                "report this kernel; residency cannot be trusted here",
            ),
        },
        Err(Errno(libc::ENOSYS)) => Finding::absent(
            NAME,
            "the kernel has no move_pages",
            "use a kernel with CONFIG_NUMA and CONFIG_MIGRATION",
        ),
        Err(errno) => Finding::absent(
            NAME,
            format!("refused: {errno} (by seccomp?)"),
            "allow move_pages (docker: --cap-add SYS_NICE, or a seccomp profile)",
        ),
    }
}

/// The kernel lets us move memory of processes that we may read as a debugger may: same user and
/// not set-user-id, or CAP_SYS_PTRACE. Yama's ptrace_scope restricts attaching only, which this is
/// not.
fn other_processes(status: &str) -> Finding {
    const NAME: &str = "other-processes";
    let mask = field(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    if mask.is_some_and(|mask| mask >> CAP_SYS_PTRACE & 1 == 1) {
        return Finding::ok(NAME, "memory of every user's processes can be moved");
    }
    Finding::ok(NAME, "this user's processes only, and no set-user-id program")
}

fn mems_allowed(status: &str, online: &CpuList) -> Finding {
    const NAME: &str = "mems-allowed";
    let allowed = field(status, "Mems_allowed_list:").and_then(|text| CpuList::parse(text).ok());
    let Some(allowed) = allowed else {
        return Finding::ok(NAME, "the kernel restricts no node");
    };
    let denied = CpuList::new(online.iter().filter(|&node| !allowed.contains(node)).collect());
    if denied.is_empty() {
        return Finding::ok(NAME, format!("all nodes with memory are allowed ({allowed})"));
    }
    Finding::degraded(
        NAME,
        format!("nodes {denied} have memory but this cpuset forbids them"),
        "add them to cpuset.mems of the control group (docker: --cpuset-mems)",
    )
}

fn numa_balancing(setting: Option<&str>) -> Finding {
    const NAME: &str = "numa-balancing";
    match setting.map(str::trim) {
        None => Finding::ok(NAME, "this kernel has no NUMA balancing to fight with"),
        Some("0") => Finding::ok(NAME, "off"),
        Some(mode) => Finding::degraded(
            NAME,
            format!("on (mode {mode}): the kernel moves OS pages too and undoes our moves"),
            "sysctl kernel.numa_balancing=0 while tiercel runs",
        ),
    }
}

fn demotion(setting: Option<&str>) -> Finding {
    const NAME: &str = "kernel-demotion";
    match setting.map(str::trim) {
        Some("true" | "1") => Finding::degraded(
            NAME,
            "on: under pressure the kernel demotes OS pages that we placed",
            "echo 0 > /sys/kernel/mm/numa/demotion_enabled, or leave free room in the fast tier",
        ),
        _ => Finding::ok(NAME, "off"),
    }
}

/// Opens work queues as the runtime does, which uses the first that opens (`runtime/vmem/dsa.c`).
fn copy_device(folder: &Path) -> Finding {
    const NAME: &str = "copy-device";
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut queues: Vec<_> = entries.map(|entry| entry.path()).collect();
    queues.retain(|path| name_of(path).starts_with("wq"));
    queues.sort();
    let mut refused = None;
    for queue in &queues {
        match std::fs::OpenOptions::new().write(true).open(queue) {
            Ok(_) => {
                let detail = format!("{} copies what vregions move", name_of(queue));
                return Finding::ok(NAME, detail);
            }
            Err(error) => refused = refused.or(Some(format!("{}: {error}", name_of(queue)))),
        }
    }
    match refused {
        None => Finding::ok(NAME, "no work queue of a Data Streaming Accelerator: CPUs copy"),
        Some(refused) => Finding::degraded(
            NAME,
            format!("no work queue opens, CPUs copy: {refused}"),
            "let this user write to a work queue of type user and mode shared in /dev/dsa",
        ),
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
