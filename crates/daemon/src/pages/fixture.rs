//! What tests of decisions by OS page begin with.
//! Out: the places of two sockets with Optane, and what accesses and moves cost there.

use tiercel_machine::Machine;
use tiercel_policy::pages::{Estimate, Places};

pub(super) fn places() -> Places {
    let machine = Machine::builtin("two-socket-optane").unwrap().unwrap();
    Places::new(&machine, 100.0).unwrap()
}

pub(super) fn estimate() -> Estimate {
    Estimate {
        history: 8,
        window_s: 1.0,
        weight: 100.0,
        horizon_s: 30.0,
        margin: 1.0,
        parallelism: 2.0,
        move_ns_per_byte: 2.0,
    }
}
