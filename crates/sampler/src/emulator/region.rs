//! Marks around what a timed guest of the lab shall time in detail, whatever else it leaves out.
//! In: work. Out: what it comes to. Knows nothing of who watches: anywhere else the marks are two
//! instructions that do nothing. `workloads/roi.h` has them for programs.

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
    fn a_region_is_what_is_done_in_it() {
        let mut done = 0;
        assert_eq!(region(|| (done += 1, 7).1), 7);
        assert_eq!(done, 1);
    }
}
