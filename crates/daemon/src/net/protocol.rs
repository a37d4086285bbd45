//! The protocol of the control socket: one JSON document a line, one answer a line.
//! In: a line of untrusted bytes. Out: a [`Request`], or what is wrong with it.
//! Knows nothing of sockets, and nothing of how a request is answered.
//!
//! ```text
//! -> {"version":1,"request":"status"}
//! <- {"version":1,"answer":{"status":{...}}}
//! -> {"version":1,"request":{"objects":{"by":"heat","limit":20}}}
//! -> {"version":1,"request":{"budget":{"fast":"25%"}}}
//! -> {"version":1,"request":"nonsense"}
//! <- {"version":1,"error":"unknown variant `nonsense`, ..."}
//! ```

use serde::{Deserialize, Serialize};
use tiercel_policy::Limit;

/// Version of the protocol; a request of another version is refused by name.
pub const VERSION: u32 = 1;

/// Longest request, bytes, without its newline. The longest valid one has under 100.
pub const REQUEST_BYTES_MAX: usize = 4096;

/// Connections at once: people and scrapers, no programs. One more is closed at once.
pub const PEERS_MAX: usize = 32;

/// Most rows of one answer: about 1 MiB.
pub const ROWS_MAX: usize = 1000;

/// Rows of an answer if the request names no limit: one screen.
pub const ROWS_DEFAULT: usize = 20;

/// What can be requested of a running daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Every single figure: clients, records, samples, moves, budget, time spent.
    Status,
    /// What objects did, by site; the first `limit` of the order.
    #[serde(rename = "objects")]
    Sites {
        /// The order.
        #[serde(default)]
        by: Order,
        /// Rows, at most [`ROWS_MAX`].
        #[serde(default = "rows_default")]
        limit: usize,
    },
    /// The hosted processes, those with most memory first.
    Processes {
        /// Rows, at most [`ROWS_MAX`].
        #[serde(default = "rows_default")]
        limit: usize,
    },
    /// The last moves and why they were made, newest first.
    Moves {
        /// Rows, at most [`ROWS_MAX`].
        #[serde(default = "rows_default")]
        limit: usize,
    },
    /// Where an OS page is and why, of processes that are tiered by OS page.
    Why {
        /// Its process; `None`: the only one that has the address.
        #[serde(default)]
        pid: Option<u32>,
        /// A byte of it.
        address: u64,
    },
    /// Changes the budget of the best tier from the next tick on.
    Budget {
        /// Bytes or share of peak.
        fast: Limit,
    },
    /// The figures of `status` as Prometheus text.
    Metrics,
    /// Ends the daemon in an orderly way; programs continue without it.
    Stop,
}

/// Orders of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Hottest first.
    #[default]
    Heat,
    /// Largest first.
    Size,
    /// By function and line.
    Site,
    /// By node, then hottest first.
    Node,
}

/// Why a line is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// More bytes than any request has.
    #[error("the request is longer than {REQUEST_BYTES_MAX} bytes")]
    TooLong,
    /// Not JSON, or JSON that is no request.
    #[error("not a request: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Another version of the protocol.
    #[error("version {0} is not supported; this is version {VERSION}")]
    Version(u32),
    /// More rows than an answer has.
    #[error("limit {0} is above {ROWS_MAX}")]
    Limit(usize),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    version: u32,
    request: Request,
}

/// Reads one line (without its newline). Never panics, whatever the bytes.
pub fn parse_request(line: &[u8]) -> Result<Request, ProtocolError> {
    if line.len() > REQUEST_BYTES_MAX {
        return Err(ProtocolError::TooLong);
    }
    let envelope: Envelope = serde_json::from_slice(line)?;
    if envelope.version != VERSION {
        return Err(ProtocolError::Version(envelope.version));
    }
    match envelope.request {
        Request::Sites { limit, .. } | Request::Processes { limit } | Request::Moves { limit }
            if limit > ROWS_MAX =>
        {
            Err(ProtocolError::Limit(limit))
        }
        request => Ok(request),
    }
}

/// The line of a request, with its newline.
pub fn request_line(request: &Request) -> Vec<u8> {
    line(&Envelope { version: VERSION, request: request.clone() })
}

/// The line of an answer, with its newline.
pub fn answer_line<T: Serialize>(answer: &T) -> Vec<u8> {
    #[derive(Serialize)]
    struct Answer<'a, T> {
        version: u32,
        answer: &'a T,
    }
    line(&Answer { version: VERSION, answer })
}

/// The line of an error, with its newline.
pub fn error_line(error: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Refusal<'a> {
        version: u32,
        error: &'a str,
    }
    line(&Refusal { version: VERSION, error })
}

fn rows_default() -> usize {
    ROWS_DEFAULT
}

/// What cannot be written becomes an error for the peer: programs choose some of the values.
fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let json = |error| serde_json::json!({ "version": VERSION, "error": format!("{error}") });
    let written = serde_json::to_vec(value);
    let mut bytes = written.unwrap_or_else(|error| json(error).to_string().into_bytes());
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    fn check(input: &str, expect: &str) {
        let got = match parse_request(input.as_bytes()) {
            Ok(request) => format!("{request:?}"),
            Err(error) => format!("error: {error}"),
        };
        assert!(got.starts_with(expect), "{input}\n got    {got}\n expect {expect}");
    }

    #[test]
    fn valid_requests_are_parsed() {
        check(r#"{"version":1,"request":"status"}"#, "Status");
        check(r#"{"version":1,"request":{"objects":{}}}"#, "Sites { by: Heat, limit: 20 }");
        check(
            r#"{"version":1,"request":{"objects":{"by":"node","limit":3}}}"#,
            "Sites { by: Node, limit: 3 }",
        );
        check(
            r#"{"version":1,"request":{"budget":{"fast":"25%"}}}"#,
            "Budget { fast: ShareOfPeak(0.25)",
        );
        check(
            r#"{"version":1,"request":{"why":{"address":4096}}}"#,
            "Why { pid: None, address: 4096 }",
        );
        check(r#"{"version":1,"request":"stop"}"#, "Stop");
    }

    #[test]
    fn malformed_requests_name_their_error() {
        check("", "error: not a request: EOF");
        check("{", "error: not a request: EOF");
        check("[]", "error: not a request");
        check(r#"{"version":2,"request":"status"}"#, "error: version 2 is not supported");
        check(r#"{"version":1,"request":"reboot"}"#, "error: not a request: unknown variant");
        check(r#"{"version":1,"request":"status","x":1}"#, "error: not a request: unknown field");
        check(r#"{"version":1,"request":{"moves":{"limit":1001}}}"#, "error: limit 1001 is above");
        check(r#"{"version":1,"request":{"moves":{"limit":-1}}}"#, "error: not a request");
        check(
            r#"{"version":1,"request":{"budget":{"fast":"x"}}}"#,
            "error: not a request: limit `x`",
        );
        check(&"[".repeat(REQUEST_BYTES_MAX), "error: not a request");
        check(&"[".repeat(REQUEST_BYTES_MAX + 1), "error: the request is longer");
    }

    #[test]
    fn an_answer_that_cannot_be_written_is_an_error() {
        let broken = std::path::Path::new(std::ffi::OsStr::from_bytes(b"\xff"));
        let line = String::from_utf8(answer_line(&broken)).unwrap();
        assert_eq!(line, "{\"error\":\"path contains invalid UTF-8 characters\",\"version\":1}\n");
    }

    proptest! {
        #[test]
        fn requests_survive_a_round_trip(
            by in 0..4usize,
            limit in 0..=ROWS_MAX,
            share in 0..100u32,
        ) {
            let order = [Order::Heat, Order::Size, Order::Site, Order::Node][by];
            for request in [
                Request::Sites { by: order, limit },
                Request::Processes { limit },
                Request::Moves { limit },
                Request::Why { pid: None, address: u64::MAX - u64::from(share) },
                Request::Budget { fast: Limit::ShareOfPeak(f64::from(share) / 100.0) },
            ] {
                let line = request_line(&request);
                prop_assert_eq!(parse_request(&line[..line.len() - 1]).unwrap(), request);
            }
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_request(&bytes);
        }
    }
}
