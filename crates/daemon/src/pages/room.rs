//! How much memory nodes grant to moves now.
//! In: `/proc/zoneinfo`. Out: [`MoveRoom`], or why it is not known. Knows nothing of what moves.

use std::path::Path;

use tiercel_machine::{Finding, MoveRoom};
use tiercel_mover::{Kernel, Linux};

/// Where the kernel says it.
pub(super) const ZONEINFO: &str = "/proc/zoneinfo";

/// What to do where it does not.
const REMEDY: &str = "mount /proc whole; in a container, mount the host's /proc/zoneinfo";

/// Why room is not known.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    /// The file cannot be read.
    #[error("cannot read {ZONEINFO}: {0}; {REMEDY}")]
    Io(#[from] std::io::Error),
    /// It names no memory: a sandbox shows an empty one.
    #[error("{ZONEINFO} names no node's memory; {REMEDY}")]
    Empty,
}

/// What nodes grant to moves, by the text of a file.
pub(super) fn read_room(zoneinfo: &Path, os_page_bytes: u64) -> Result<MoveRoom, RoomError> {
    let room = MoveRoom::of(&std::fs::read_to_string(zoneinfo)?, os_page_bytes);
    if room.is_empty() { Err(RoomError::Empty) } else { Ok(room) }
}

/// Whether OS pages can be tiered here, as far as room is concerned.
pub fn support() -> Finding {
    const NAME: &str = "os-pages";
    match read_room(Path::new(ZONEINFO), Linux::default().os_page_bytes()) {
        Ok(_) => Finding::ok(NAME, "what nodes grant to moves can be read"),
        Err(error) => Finding::absent(NAME, format!("attach moves nothing: {error}"), REMEDY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_is_not_known_is_no_room_without_a_word() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("zoneinfo");
        let error = read_room(&file, 4096).unwrap_err().to_string();
        assert!(error.contains("cannot read /proc/zoneinfo: No such file"), "{error}");
        for text in ["", "Node 0, zone DMA\n  pages free 7\n"] {
            std::fs::write(&file, text).unwrap();
            assert!(matches!(read_room(&file, 4096), Err(RoomError::Empty)), "{text}");
        }
        std::fs::write(&file, "Node 0, zone DMA\n  pages free 7\n min 3\n managed 9\n").unwrap();
        let room = read_room(&file, 4096).unwrap();
        assert_eq!(room.granted(tiercel_machine::NodeId(0)).bytes, 4 * 4096);
    }
}
