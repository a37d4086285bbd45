//! Edge in: observes accesses of tracked processes by whatever this machine offers.
//! In: process ids, address ranges to watch. Out: [`tiercel_wire::Sample`]s, counters, losses.
//! Knows nothing of objects or heat: it never interprets what it sees.
