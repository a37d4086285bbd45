//! Moves a range of a process to a node with the kernel mover and says what became of it.
//! In: `move_range PID ADDRESS BYTES NODE`. Out: `moved B`, `resident B`, `absent B` and for each
//! reason of failure `failed REASON B`. Knows nothing of why; the guest tests use it.

use std::process::ExitCode;

use tiercel_ledger::movement::{Move, Reason};
use tiercel_machine::NodeId;
use tiercel_mover::{KernelMover, Mover};

/// The guest is x86-64.
const OS_PAGE_BYTES: u64 = 4096;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Option<Vec<u64>> = arguments.iter().map(|text| number(text)).collect();
    let Some(&[pid, addr, bytes, node]) = numbers.as_deref() else {
        eprintln!("usage: move_range PID ADDRESS BYTES NODE");
        return ExitCode::from(2);
    };
    let first = addr.next_multiple_of(OS_PAGE_BYTES);
    let asked = Move {
        pid: pid as u32,
        addr: first,
        bytes: ((addr + bytes) - first) / OS_PAGE_BYTES * OS_PAGE_BYTES,
        from: None,
        to: NodeId(node as u16),
        reason: Reason::Asked,
        gain_ns_per_s: 0.0,
        cost_ns: 0.0,
    };
    for outcome in KernelMover::new().execute(&[asked]) {
        println!("moved {}", outcome.moved_bytes);
        println!("resident {}", outcome.resident_bytes);
        println!("absent {}", outcome.absent_bytes);
        for (failure, bytes) in outcome.failed {
            println!("failed {failure:?} {bytes}");
        }
    }
    ExitCode::SUCCESS
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
