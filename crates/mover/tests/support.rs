//! What doctor says about moving, on settings and kernels of all sorts.

use std::fmt::Write;
use std::fs;

use expect_test::{Expect, expect};
use tiercel_machine::NodeId;
use tiercel_mover::{Errno, Kernel, support_below};

/// A kernel that answers every question alike.
struct Answers(Result<i32, i32>);

impl Kernel for Answers {
    fn move_pages(
        &mut self,
        _pid: u32,
        _addrs: &[u64],
        _target: Option<NodeId>,
        status: &mut [i32],
    ) -> Result<u64, Errno> {
        self.0.map(|answer| status.fill(answer)).map_err(Errno)?;
        Ok(0)
    }

    fn os_page_bytes(&self) -> u64 {
        4096
    }
}

fn check(files: &[(&str, &str)], answer: Result<i32, i32>, expected: &Expect) {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let mut text = String::new();
    for finding in support_below(root.path(), &mut Answers(answer)) {
        writeln!(text, "{} {:?}: {}", finding.name, finding.standing, finding.detail).unwrap();
        if !finding.remedy.is_empty() {
            writeln!(text, "  do: {}", finding.remedy).unwrap();
        }
    }
    expected.assert_eq(&text);
}

const NODES: &str = "sys/devices/system/node/has_memory";
const STATUS: &str = "proc/self/status";
const BALANCING: &str = "proc/sys/kernel/numa_balancing";
const DEMOTION: &str = "sys/kernel/mm/numa/demotion_enabled";

#[test]
fn a_good_machine() {
    let status = "Name:\tx\nCapEff:\t000001ffffffffff\nMems_allowed_list:\t0-3\n";
    let files = [(NODES, "0-3\n"), (STATUS, status), (BALANCING, "0\n"), (DEMOTION, "false\n")];
    check(
        &files,
        Ok(2),
        &expect![[r#"
        memory-nodes Ok: 4 nodes with memory (0-3)
        move-pages Ok: works on our own memory (node 2)
        other-processes Ok: memory of every user's processes can be moved
        mems-allowed Ok: all nodes with memory are allowed (0-3)
        numa-balancing Ok: off
        kernel-demotion Ok: off
        copy-device Ok: no work queue of a Data Streaming Accelerator: CPUs copy
    "#]],
    );
}

#[test]
fn everything_in_the_way() {
    let status = "CapEff:\t0000000000000000\nMems_allowed_list:\t0\n";
    let files = [(NODES, "0-1\n"), (STATUS, status), (BALANCING, "2\n"), (DEMOTION, "true\n")];
    check(
        &files,
        Err(libc::EPERM),
        &expect![[r#"
            memory-nodes Ok: 2 nodes with memory (0-1)
            move-pages Absent: refused: Operation not permitted (os error 1) (by seccomp?)
              do: allow move_pages (docker: --cap-add SYS_NICE, or a seccomp profile)
            other-processes Ok: this user's processes only, and no set-user-id program
            mems-allowed Degraded: nodes 1 have memory but this cpuset forbids them
              do: add them to cpuset.mems of the control group (docker: --cpuset-mems)
            numa-balancing Degraded: on (mode 2): the kernel moves OS pages too and undoes our moves
              do: sysctl kernel.numa_balancing=0 while tiercel runs
            kernel-demotion Degraded: on: under pressure the kernel demotes OS pages that we placed
              do: echo 0 > /sys/kernel/mm/numa/demotion_enabled, or leave free room in the fast tier
            copy-device Ok: no work queue of a Data Streaming Accelerator: CPUs copy
        "#]],
    );
}

#[test]
fn a_bare_root_and_an_old_kernel() {
    check(
        &[],
        Err(libc::ENOSYS),
        &expect![[r#"
        memory-nodes Degraded: one node with memory: there is nowhere to move to, moves are modelled
          do: run on a machine with several kinds of memory, or in the lab: tiercel lab
        move-pages Absent: the kernel has no move_pages
          do: use a kernel with CONFIG_NUMA and CONFIG_MIGRATION
        other-processes Ok: this user's processes only, and no set-user-id program
        mems-allowed Ok: the kernel restricts no node
        numa-balancing Ok: this kernel has no NUMA balancing to fight with
        kernel-demotion Ok: off
        copy-device Ok: no work queue of a Data Streaming Accelerator: CPUs copy
    "#]],
    );
}

#[test]
fn a_kernel_that_talks_nonsense() {
    check(
        &[(NODES, "0-banana\n"), (STATUS, "CapEff:\tzz\n")],
        Ok(-5),
        &expect![[r#"
        memory-nodes Degraded: one node with memory: there is nowhere to move to, moves are modelled
          do: run on a machine with several kinds of memory, or in the lab: tiercel lab
        move-pages Degraded: answers -5 for memory that is there
          do: report this kernel; residency cannot be trusted here
        other-processes Ok: this user's processes only, and no set-user-id program
        mems-allowed Ok: the kernel restricts no node
        numa-balancing Ok: this kernel has no NUMA balancing to fight with
        kernel-demotion Ok: off
        copy-device Ok: no work queue of a Data Streaming Accelerator: CPUs copy
    "#]],
    );
}

/// What `copy-device` says where `/dev/dsa` has these; a folder cannot be written.
fn check_device(files: &[&str], folders: &[&str], expected: &Expect) {
    let root = tempfile::tempdir().unwrap();
    let dsa = root.path().join("dev/dsa");
    fs::create_dir_all(&dsa).unwrap();
    files.iter().for_each(|name| fs::write(dsa.join(name), "").unwrap());
    folders.iter().for_each(|name| fs::create_dir(dsa.join(name)).unwrap());
    let findings = support_below(root.path(), &mut Answers(Ok(0)));
    let found = findings.iter().find(|finding| finding.name == "copy-device").unwrap();
    expected.assert_eq(&format!("{:?}: {}; do: {}", found.standing, found.detail, found.remedy));
}

#[test]
fn devices_that_copy() {
    check_device(
        &["by-path", "wq0.1"],
        &["wq0.0"],
        &expect!["Ok: wq0.1 copies what vregions move; do: "],
    );
    check_device(
        &[],
        &["wq0.0", "wq2.3"],
        &expect![
            "Degraded: no work queue opens, CPUs copy: wq0.0: Is a directory (os error 21); \
             do: let this user write to a work queue of type user and mode shared in /dev/dsa"
        ],
    );
}
