//! Any text as a configuration: refused with a message or accepted, never a panic; and what is
//! accepted can be written down and read again as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiercel_daemon::Settings;

fuzz_target!(|text: &str| {
    match Settings::from_toml(text) {
        Ok(settings) => {
            let again = Settings::from_toml(&settings.to_toml()).expect("its own text is refused");
            // A share that is not a number differs from itself, so the texts are compared.
            assert_eq!(settings.to_toml(), again.to_toml());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
