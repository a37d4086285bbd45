//! Minimal programs, written byte by byte so that no compiler is needed: marks execute a
//! no-operation that the timing plugin recognizes, and exit with status 0; `interleave` sets a
//! memory policy that Debian 12's numactl does not support, and executes another program. In: which
//! mark, which nodes. Out: an ELF file. Knows nothing of the plugin's reaction.

/// Detailed timing begins; `crates/emulator` has the same value.
pub(crate) const BEGIN: u8 = 1;
/// Detailed timing ends.
pub(crate) const END: u8 = 2;

// Load address of programs that are not position-independent; sizes of Elf64_Ehdr and Elf64_Phdr.
const LOAD_ADDRESS: u64 = 0x40_0000;
const HEADER_BYTES: u16 = 64;
const SEGMENT_BYTES: u16 = 56;

/// A static x86-64 program that executes a mark.
pub(crate) fn program(mark: u8) -> Vec<u8> {
    let mut code = vec![0x0f, 0x1f, 0x80, mark, b'L', b'C', b'T']; // nopl mark(%rax)
    code.extend([0xb8, 60, 0, 0, 0]); // mov $60 (exit), %eax
    code.extend([0x31, 0xff, 0x0f, 0x05]); // xor %edi, %edi; syscall
    elf(&code)
}

/// `interleave PATH ARGUMENT...`: executes the program at PATH with memory from all `nodes` in
/// turn, by the kernel's weights. Exits with status 127 on failure.
pub(crate) fn interleave(nodes: &[u16]) -> Vec<u8> {
    let mask = nodes.iter().filter(|node| **node < 64).fold(0u64, |mask, node| mask | 1 << node);
    let mut code = vec![0xb8, 238, 0, 0, 0]; // mov $238 (set_mempolicy), %eax
    code.extend([0xbf, 6, 0, 0, 0]); // mov $6 (MPOL_WEIGHTED_INTERLEAVE), %edi
    code.extend([0x48, 0x8d, 0x35, 49, 0, 0, 0]); // lea mask(%rip), %rsi
    code.extend([0xba, 65, 0, 0, 0]); // mov $65, %edx: the kernel reads one bit less
    code.extend([0x0f, 0x05, 0x85, 0xc0, 0x75, 26]); // syscall; test %eax, %eax; jne fail
    code.extend([0x48, 0x8b, 0x04, 0x24]); // mov (%rsp), %rax: how many arguments
    code.extend([0x48, 0x8b, 0x7c, 0x24, 0x10]); // mov 16(%rsp), %rdi: the first
    code.extend([0x48, 0x8d, 0x74, 0x24, 0x10]); // lea 16(%rsp), %rsi: from the first on
    code.extend([0x48, 0x8d, 0x54, 0xc4, 0x10]); // lea 16(%rsp,%rax,8), %rdx: the environment
    code.extend([0xb8, 59, 0, 0, 0, 0x0f, 0x05]); // mov $59 (execve), %eax; syscall
    code.extend([0xbf, 127, 0, 0, 0]); // fail: mov $127, %edi
    code.extend([0xb8, 60, 0, 0, 0, 0x0f, 0x05]); // mov $60 (exit), %eax; syscall
    code.extend(mask.to_le_bytes());
    elf(&code)
}

fn elf(code: &[u8]) -> Vec<u8> {
    let headers = u64::from(HEADER_BYTES + SEGMENT_BYTES);
    let bytes = headers + code.len() as u64;
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    elf.extend([2, 0, 0x3e, 0, 1, 0, 0, 0]); // executable, x86-64, version 1
    let half = |value: u16| value.to_le_bytes();
    let long = |value: u64| value.to_le_bytes();
    // entry, segments' offset, sections' offset
    elf.extend([LOAD_ADDRESS + headers, u64::from(HEADER_BYTES), 0].map(long).concat());
    elf.extend([0; 4]); // flags
    elf.extend([HEADER_BYTES, SEGMENT_BYTES, 1, 0, 0, 0].map(half).concat());
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]); // one segment, loaded, readable and executable
    elf.extend([0, LOAD_ADDRESS, LOAD_ADDRESS, bytes, bytes, 0x1000].map(long).concat());
    elf.extend(code);
    elf
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Runs a program made here; returns its exit status and output.
    fn run(elf: &[u8], arguments: &[&str]) -> (Option<i32>, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        std::fs::write(&path, elf).expect("written");
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, permissions).expect("executable");
        let mut command = std::process::Command::new(&path);
        command.args(arguments).env_clear().env("WORD", "kept");
        let output = loop {
            match command.output() {
                // A concurrent test forked while the file was open for writing.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                other => break other.expect("it starts"),
            }
        };
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn marks_run_and_succeed() {
        for mark in [BEGIN, END] {
            assert_eq!(run(&program(mark), &[]).0, Some(0));
        }
    }

    #[test]
    fn interleave_executes_the_program_if_the_kernel_has_the_policy() {
        let nodes = std::path::Path::new("/sys/kernel/mm/mempolicy/weighted_interleave");
        let ended = run(&interleave(&[0]), &["/bin/sh", "-c", "echo $WORD $0 $1", "a", "b c"]);
        let (done, refused) = ((Some(0), "kept a b c\n".to_owned()), (Some(127), String::new()));
        // Containers may hide this directory although the kernel has the policy.
        assert!(ended == done || (ended == refused && !nodes.exists()), "{ended:?}");
        assert_eq!(run(&interleave(&[0]), &[]).0, Some(127));
        assert_eq!(run(&interleave(&[]), &["/bin/true"]).0, Some(127));
    }
}
