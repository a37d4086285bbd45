//! Marks around the code that a timed guest of the lab times in detail, even if it skips the rest.
//! In: work. Out: its result. Knows nothing of the emulator: elsewhere the marks are two
//! instructions without effect. `workloads/roi.h` has them for C programs.

/// Does the work inside a region of interest.
pub fn region<T>(work: impl FnOnce() -> T) -> T {
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
            std::arch::asm!("nopl 0x54494501(%rax)", options(att_syntax, nostack, preserves_flags));
        } else {
            std::arch::asm!("nopl 0x54494502(%rax)", options(att_syntax, nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn mark<const BEGINS: bool>() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_returns_the_result_of_its_work() {
        let mut done = 0;
        assert_eq!(region(|| (done += 1, 7).1), 7);
        assert_eq!(done, 1);
    }
}
