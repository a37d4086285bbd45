//! Boots a stock Linux kernel with a machine's memory nodes and runs programs in it.
//! In: a machine description, commands, files. Out: their files, output and exit status.
//! Knows nothing of policies; the guest runs the same binaries as any machine.

#![forbid(unsafe_code)]
