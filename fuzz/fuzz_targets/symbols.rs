//! Any bytes as an ELF file with debug information: names or none, within the limits of memory and
//! time, and what a terminal gets of them is printable. A defect of the parser that panics costs
//! names only.
//!
//! ```text
//! four addresses u16, then the file
//! ```

#![no_main]

#[path = "../../crates/tiercel/src/terminal.rs"]
#[allow(dead_code)]
mod terminal;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tiercel_fuzz::assert_printable;
use tiercel_symbolize::{Reader, SiteFrame, Symbols, build_id};

/// Chosen, not measured.
const ADDRESSES: usize = 4;

/// In memory, where the machine has a file system for that.
static FILE: LazyLock<tempfile::NamedTempFile> = LazyLock::new(|| {
    // A panic of the parser is caught; the engine's hook would end us first.
    std::panic::set_hook(Box::new(|_| {}));
    let made = tempfile::NamedTempFile::new_in("/dev/shm");
    made.or_else(|_| tempfile::NamedTempFile::new()).expect("a file")
});

fuzz_target!(|data: &[u8]| {
    let Some((addresses, file)) = data.split_at_checked(ADDRESSES * 2) else { return };
    let path: Arc<Path> = FILE.path().into();
    std::fs::write(&path, file).expect("room");
    let _ = build_id(&path);
    let mut symbols = Symbols::new(&Reader::InProcess);
    for address in addresses.chunks_exact(2) {
        let addr = u64::from(u16::from_le_bytes([address[0], address[1]]));
        let frame = SiteFrame { path: Arc::clone(&path), build_id: [].into(), addr };
        let names = symbols.names(&frame);
        assert!(!names.is_empty());
        names.iter().for_each(|name| assert_printable(&terminal::printable(&name.short())));
    }
});
