//! All chores: `cargo xtask <verb>`.
//! In: arguments. Out: built artefacts, test and bench results.
//! Knows nothing of how Tiercel works inside.

#![forbid(unsafe_code)]

fn main() {}
