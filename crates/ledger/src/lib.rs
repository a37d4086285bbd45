//! Folds records and samples into objects, extents, heat and cost.
//! In: [`tiercel_wire::Record`]s, [`tiercel_wire::Sample`]s, outcomes of moves, the time. Out: [`Extent`]s.
//! Knows nothing of files, clocks, processes or how anything is moved.

#![forbid(unsafe_code)]

pub mod movement;
