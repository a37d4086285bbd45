//! Any bytes as a line on the control socket: refused with a message or understood, never a panic;
//! and what is understood means the same when said again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiercel_daemon::protocol;

fuzz_target!(|line: &[u8]| {
    match protocol::parse_request(line) {
        Ok(request) => {
            let said = protocol::request_line(&request);
            let again = protocol::parse_request(said.trim_ascii_end()).expect("its own line");
            assert_eq!(said, protocol::request_line(&again));
        }
        Err(error) => {
            let answer = protocol::error_line(&error.to_string());
            assert_eq!(answer.iter().filter(|byte| **byte == b'\n').count(), 1);
        }
    }
});
