//! Any bytes as a line on the control socket: refused with a message or understood, never a panic;
//! and what is understood means the same when said again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiercel_daemon::control;

fuzz_target!(|line: &[u8]| {
    match control::parse_request(line) {
        Ok(request) => {
            let said = control::request_line(&request);
            let again = control::parse_request(said.trim_ascii_end()).expect("its own line");
            assert_eq!(said, control::request_line(&again));
        }
        Err(error) => {
            let answer = control::error_line(&error.to_string());
            assert_eq!(answer.iter().filter(|byte| **byte == b'\n').count(), 1);
        }
    }
});
