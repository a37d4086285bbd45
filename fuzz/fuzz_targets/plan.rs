//! Any bytes as a plan: refused with a message, or sound; and what is accepted is written and read
//! as the same, and fits a machine without a row beyond its arenas.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tiercel_machine::{Machine, NodeId};
use tiercel_plan::{Plan, check_plan, fit};

fuzz_target!(|bytes: &[u8]| {
    match Plan::from_json(bytes, Path::new("fuzzed.plan")) {
        Ok(plan) => {
            assert_eq!(check_plan(&plan), Ok(()));
            let text = plan.to_json().expect("what was read is sound");
            let again = Plan::from_json(text.as_bytes(), Path::new("again.plan"));
            assert_eq!(again.expect("its own text is refused"), plan);
            let Some(Ok(machine)) = Machine::builtin("spr-cxl") else { unreachable!("built in") };
            let arenas: Vec<NodeId> = machine.tiers().iter().map(|tier| tier.nodes[0]).collect();
            let fit = fit(&plan, &machine, &arenas);
            let beyond = |arena: u8| usize::from(arena) >= arenas.len();
            assert!(!fit.rows.iter().any(|row| beyond(row.arena) || beyond(row.other)));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
