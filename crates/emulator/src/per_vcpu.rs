// SPDX-License-Identifier: GPL-2.0-or-later
//! A value for each virtual CPU, which the CPU's own thread alone borrows, for one call.
//! In: values. Out: a mutable borrow inside a closure. Knows nothing of the values.
//!
//! QEMU calls back on the thread of the virtual CPU that it names, and a callback cannot afford a
//! lock. A borrow cannot leave its closure, and one inside another ends QEMU instead of making two.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use tiercel_wire::emulator::VCPUS_MAX;

use crate::fatal::give_up;

/// A slot for each virtual CPU.
pub struct PerVcpu<T> {
    slots: [Slot<T>; VCPUS_MAX],
}

struct Slot<T> {
    /// Null, or what [`PerVcpu::set`] leaked.
    value: AtomicPtr<T>,
    is_borrowed: AtomicBool,
}

impl<T: Send> PerVcpu<T> {
    /// All are empty.
    pub const fn new() -> PerVcpu<T> {
        PerVcpu { slots: [const { Slot::new() }; VCPUS_MAX] }
    }

    /// Gives a virtual CPU its value, for ever: one that is there already stays.
    pub fn set(&self, vcpu: usize, value: T) {
        let (empty, made) = (std::ptr::null_mut(), Box::into_raw(Box::new(value)));
        let slot = &self.slots[vcpu].value;
        if slot.compare_exchange(empty, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above, and not published.
            drop(unsafe { Box::from_raw(made) });
        }
    }

    /// Borrows the value of a virtual CPU; `None` where it has none. In a callback of that CPU, or
    /// when all have stopped.
    pub fn with<R>(&self, vcpu: usize, borrow: impl FnOnce(&mut T) -> R) -> Option<R> {
        let Slot { value, is_borrowed } = &self.slots[vcpu];
        let value = value.load(Ordering::Acquire);
        if value.is_null() {
            return None;
        }
        // Not one atomic step: it would cost as much as an access that hits. Only the CPU's own
        // thread comes here, so that only a call inside a call can find it set.
        if is_borrowed.load(Ordering::Relaxed) {
            give_up("a virtual CPU's state is borrowed twice");
        }
        is_borrowed.store(true, Ordering::Relaxed);
        // SAFETY: a box that `set` leaked, valid for ever. The flag excludes a second borrow by
        // this thread, and no other thread borrows it.
        let result = borrow(unsafe { &mut *value });
        is_borrowed.store(false, Ordering::Relaxed);
        Some(result)
    }
}

impl<T> Slot<T> {
    const fn new() -> Slot<T> {
        Slot { value: AtomicPtr::new(std::ptr::null_mut()), is_borrowed: AtomicBool::new(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_and_is_borrowed_one_call_at_a_time() {
        static VALUES: PerVcpu<Vec<u8>> = PerVcpu::new();
        assert_eq!(VALUES.with(0, |value| value.len()), None);
        VALUES.set(0, vec![1]);
        VALUES.set(0, vec![2, 3]);
        assert_eq!(VALUES.with(0, |value| value.push(9)), Some(()));
        assert_eq!(VALUES.with(0, |value| value.clone()), Some(vec![1, 9]));
        assert_eq!(VALUES.with(1, |value| value.len()), None);
    }
}
