//! Decides which extents belong in which tier, and when.
//! In: the ledger, the machine, budgets, the interval's counters, the time. Out: moves and problems.
//! Knows nothing of files, clocks or how anything is moved; it never calls a mover.

#![forbid(unsafe_code)]
