// SPDX-License-Identifier: GPL-2.0-or-later
//! Whether the host's threads of virtual CPUs sleep.
//! In: a virtual CPU's thread, once. Out: what the host's kernel says of it.
//! Knows nothing of the guest's time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::clock::MAX_VCPUS;

/// What the kernel says of each thread.
static THREADS: [OnceLock<File>; MAX_VCPUS] = [const { OnceLock::new() }; MAX_VCPUS];
/// Its beginning: a number, the name of at most 15 bytes in brackets, the state.
const STAT_BYTES: usize = 48;

/// The calling thread is a virtual CPU's, for good.
pub fn is_this(vcpu: usize) {
    // Without it no thread is waited for long.
    if let Ok(file) = File::open("/proc/thread-self/stat") {
        let _ = THREADS[vcpu].set(file);
    }
}

/// Whether a virtual CPU's thread waits for something; otherwise it goes on as soon as the host's
/// scheduler lets it.
pub fn sleeps(vcpu: usize) -> bool {
    let mut text = [0; STAT_BYTES];
    let read = THREADS[vcpu].get().map(|file| file.read_at(&mut text, 0));
    let Some(Ok(length)) = read else { return true };
    is_sleeping(&text[..length])
}

/// Reads the state in `/proc/PID/task/TID/stat`: `12 (CPU 0/TCG) S ...`.
fn is_sleeping(stat: &[u8]) -> bool {
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    let state = name_end.and_then(|end| stat.get(end + 2));
    matches!(state, None | Some(b'S'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_behind_the_name() {
        for (stat, sleeping) in [
            ("12 (CPU 0/TCG) S 1 12", true),
            ("12 (CPU 0/TCG) R 1 12", false),
            ("12 (a) S (b)) R 1", false),
            ("12 (CPU", true),
            ("", true),
        ] {
            assert_eq!(is_sleeping(stat.as_bytes()), sleeping, "{stat}");
        }
    }

    #[test]
    fn the_thread_that_asks_is_awake() {
        is_this(0);
        assert!(!sleeps(0));
        assert!(sleeps(1), "there is no such thread");
    }
}
