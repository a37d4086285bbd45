//! The smallest programs there are: each executes a no-operation that the timing plugin knows, and
//! ends with status 0.
//! In: which mark. Out: an ELF file. Knows nothing of what the plugin does then.

/// What follows shall be timed in detail; `crates/emulator` knows the same bytes.
pub(crate) const BEGIN: u8 = 1;
/// What follows need not be.
pub(crate) const END: u8 = 2;

const LOAD_ADDRESS: u64 = 0x40_0000;
const HEADER_BYTES: u16 = 64;
const SEGMENT_BYTES: u16 = 56;

/// A static x86-64 program.
pub(crate) fn program(mark: u8) -> Vec<u8> {
    let mut code = vec![0x0f, 0x1f, 0x80, mark, b'L', b'C', b'T']; // nopl mark(%rax)
    code.extend([0xb8, 60, 0, 0, 0]); // mov $60 (exit), %eax
    code.extend([0x31, 0xff, 0x0f, 0x05]); // xor %edi, %edi; syscall
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

    #[test]
    fn marks_run_and_succeed() {
        let dir = tempfile::tempdir().expect("a directory");
        for mark in [BEGIN, END] {
            let path = dir.path().join(format!("mark{mark}"));
            std::fs::write(&path, program(mark)).expect("written");
            let permissions = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, permissions).expect("executable");
            let status = std::process::Command::new(&path).status().expect("it starts");
            assert!(status.success(), "{status}");
        }
    }
}
