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

/// One virtual CPU's reader; used in callbacks of that CPU only.
pub struct Reader {
    base: Register,
    bytes: Array,
}

/// QEMU's name of a register.
#[derive(Clone, Copy)]
struct Register(*mut c_void);

// SAFETY: the address is never followed, only handed back to QEMU.
unsafe impl Send for Register {}

/// An array of glib's that has no other owner, and lives for ever.
struct Array(*mut ffi::Bytes);

// SAFETY: glib's arrays belong to no thread, and this one has no other owner.
unsafe impl Send for Array {}

impl Array {
    fn new() -> Array {
        // SAFETY: it never fails; without memory it ends the process.
        Array(unsafe { ffi::g_byte_array_new() })
    }

    fn clear(&mut self) {
        // SAFETY: a valid array, as the type states.
        unsafe { ffi::g_byte_array_set_size(self.0, 0) };
    }

    /// The first bytes; `None` when there are fewer.
    fn first<const N: usize>(&self) -> Option<[u8; N]> {
        // SAFETY: `data` holds `length` bytes in every valid array.
        unsafe {
            let ffi::Bytes { data, length } = &*self.0;
            (*length as usize >= N).then(|| data.cast::<[u8; N]>().read())
        }
    }
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
        Some(Reader { base: Register(base), bytes: Array::new() })
    }

    /// The running task, in a callback of an instruction in user mode.
    pub fn task(&mut self, at: TaskOffsets) -> Option<Task> {
        if at == TaskOffsets::default() {
            return None;
        }
        let base = self.kernel_base()?;
        let current = u64::from_le_bytes(self.memory(base.wrapping_add(at.current))?);
        let mut number = |offset: u32| {
            self.memory(current.wrapping_add(u64::from(offset))).map(u32::from_le_bytes)
        };
        let (pid, tid) = (number(at.process)?, number(at.thread)?);
        (pid != 0).then_some(Task { pid, tid })
    }

    fn kernel_base(&mut self) -> Option<u64> {
        self.bytes.clear();
        // SAFETY: QEMU's own register and a valid array, in a callback of the virtual CPU.
        let read = unsafe { ffi::qemu_plugin_read_register(self.base.0, self.bytes.0) };
        (read == 8).then(|| self.bytes.first().map(u64::from_le_bytes))?
    }

    /// Memory of the guest; `None` where nothing is mapped.
    fn memory<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        self.bytes.clear();
        // SAFETY: a valid array, in a callback of the virtual CPU.
        let read = unsafe { ffi::qemu_plugin_read_memory_vaddr(address, self.bytes.0, N) };
        read.then(|| self.bytes.first())?
    }
}
