//! Any text as a machine's description, and as overrides of one: never a panic; and what is
//! accepted can be written down and read again as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiercel_machine::{Machine, Overrides};

fuzz_target!(|text: &str| {
    let machine = Machine::from_toml(text);
    if let Ok(machine) = &machine {
        let again = Machine::from_toml(&machine.to_toml()).expect("its own text is refused");
        assert_eq!(machine.to_toml(), again.to_toml());
    }
    if let (Ok(mut machine), Ok(overrides)) = (machine, Overrides::from_toml(text)) {
        // An override of a node that is not there is an error, not a panic.
        let _ = machine.apply(&overrides);
    }
});
