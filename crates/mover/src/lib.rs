//! Edge out: executes moves and reports what really happened.
//! In: [`tiercel_ledger::movement::Move`]s. Out: [`tiercel_ledger::movement::Outcome`]s by residency.
//! Knows nothing of why a move was asked for.
