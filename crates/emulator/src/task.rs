// SPDX-License-Identifier: GPL-2.0-or-later
//! Who runs on a virtual CPU, read from the guest's kernel.
//! In: where the kernel keeps it, as the sampler in the guest says. Out: [`Task`].
//! Knows nothing of samples.
//!
//! While user code runs, the kernel's base of the CPU's own data waits in `KERNEL_GS_BASE`. At an
//! offset there is the address of the running task, and in it are the numbers of its process and
//! thread. The offsets come from the guest and may be nonsense: then reading fails, or answers
//! nonsense, and that is all.

use std::ffi::{CStr, c_void};

use tiercel_wire::emulator::TaskOffsets;

use crate::ffi;
use crate::samples::Task;

/// The register's name in QEMU's description of x86-64.
const KERNEL_BASE: &CStr = c"k_gs_base";

/// One virtual CPU's reader; used by its own thread only.
pub struct Reader {
    base: *mut c_void,
    bytes: *mut ffi::Bytes,
}

impl Reader {
    /// Finds the register; `None` when this QEMU does not show it. In a callback of the virtual
    /// CPU.
    pub fn new() -> Option<Reader> {
        // SAFETY: QEMU answers an array that has no other owner, of descriptors with valid names;
        // it is small and leaked.
        let base = unsafe {
            let registers = &*ffi::qemu_plugin_get_registers();
            let length = registers.length as usize;
            (0..length)
                .map(|i| &*registers.data.add(i))
                .find(|register| CStr::from_ptr(register.name) == KERNEL_BASE)?
                .handle
        };
        // SAFETY: an allocation that lives for ever.
        let bytes = unsafe { ffi::g_byte_array_new() };
        Some(Reader { base, bytes })
    }

    /// The running task, in a callback of an instruction in user mode.
    pub fn task(&mut self, at: TaskOffsets) -> Option<Task> {
        if at == TaskOffsets::default() {
            return None;
        }
        let current = self.word(self.kernel_base()?.wrapping_add(at.current))?;
        let number = |offset: u32| self.half(current.wrapping_add(u64::from(offset)));
        let (pid, tid) = (number(at.process)?, number(at.thread)?);
        (pid != 0).then_some(Task { pid, tid })
    }

    fn kernel_base(&self) -> Option<u64> {
        // SAFETY: the handle is QEMU's; the array is this reader's alone.
        unsafe {
            ffi::g_byte_array_set_size(self.bytes, 0);
            let read = ffi::qemu_plugin_read_register(self.base, self.bytes);
            (read == 8).then(|| (*self.bytes).data.cast::<u64>().read_unaligned())
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        // SAFETY: as in `kernel_base`; an address that is not mapped fails.
        unsafe {
            let read = ffi::qemu_plugin_read_memory_vaddr(address, self.bytes, 8);
            read.then(|| (*self.bytes).data.cast::<u64>().read_unaligned())
        }
    }

    fn half(&self, address: u64) -> Option<u32> {
        // SAFETY: as in `word`.
        unsafe {
            let read = ffi::qemu_plugin_read_memory_vaddr(address, self.bytes, 4);
            read.then(|| (*self.bytes).data.cast::<u32>().read_unaligned())
        }
    }
}
