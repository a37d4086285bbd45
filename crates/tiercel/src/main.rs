//! The `tiercel` command: parses arguments, draws the terminal. The only crate that prints.
//! In: arguments, a configuration file. Out: text or JSON.
//! Knows nothing of how anything is decided or done.

#![forbid(unsafe_code)]

fn main() {}
