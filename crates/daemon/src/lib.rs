//! One loop over a closed `enum Event`: clients, records, samples, ticks, moves, requests.
//! In: a configuration, a listening socket. Out: moves executed, a summary, a control socket.
//! Knows nothing of terminals; it prints nothing.

#![forbid(unsafe_code)]
