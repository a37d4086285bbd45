//! Ends QEMU where it is not the one the plugin was built for.
//! In: a reason. Out: a line on standard error, and the end. Knows nothing of timing.

/// Ends QEMU with a reason: it is not the one the plugin was made for.
pub fn give_up(reason: &str) -> ! {
    eprintln!("tiercel emulator: {reason}; the lab's own QEMU is needed");
    std::process::exit(1)
}
