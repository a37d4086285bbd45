//! Marks around work of Tiercel's own that a timed guest of the lab times in detail, even if it
//! times only the program's regions of interest so. It is no such region: the marks are others than
//! those of `workloads/roi.h`. In: work. Out: its result. Knows nothing of the emulator: elsewhere
//! the marks are two instructions without effect.

/// Does the work between the marks.
pub fn in_detail<T>(work: impl FnOnce() -> T) -> T {
    mark::<true>();
    let result = work();
    mark::<false>();
    result
}

#[cfg(target_arch = "x86_64")]
fn mark<const BEGINS: bool>() {
    // SAFETY: `nopl imm32(%rax)` does nothing: it reads no memory and changes no flag.
    unsafe {
        if BEGINS {
            std::arch::asm!("nopl 0x54494503(%rax)", options(att_syntax, nostack, preserves_flags));
        } else {
            std::arch::asm!("nopl 0x54494504(%rax)", options(att_syntax, nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn mark<const BEGINS: bool>() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_work_returns_its_result() {
        let mut done = 0;
        assert_eq!(in_detail(|| (done += 1, 7).1), 7);
        assert_eq!(done, 1);
    }
}
