//! What is known of a program as the bytes of a file: anything but a complete and valid file of
//! this version is refused.
//! In: [`Known`], or bytes. Out: the other. Knows nothing of folders.
//!
//! ```text
//!   {"format":"tiercel learned","version":1,"bytes":N,"crc32":"..."}\n   head: in all versions
//!   {"identity":...}                                                     N bytes of JSON
//! ```

use serde::{Deserialize, Serialize};

use crate::figures::Known;

/// Version of the file's format.
pub const LEARNED_VERSION: u32 = 1;
/// Longest file that is read or written, bytes: 1024 sites of 1.5 KiB, and as much again.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Value of the first field of every file.
const FORMAT: &str = "tiercel learned";
/// Longest first line.
const HEAD_BYTES_MAX: usize = 256;

/// Why a file is not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Truncated, damaged, forged, or another file.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// Of another version.
    #[error("its version is {found}; this build reads {LEARNED_VERSION}")]
    Version {
        /// The version.
        found: u64,
    },
    /// What is known does not fit a file.
    #[error("{0} bytes are more than is kept of a program")]
    TooLarge(usize),
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u64,
    bytes: u64,
    crc32: String,
}

/// The bytes of a file.
///
/// # Errors
/// Where it would be too large, or contradicts itself, which is a defect of its producer.
pub fn encode(known: &Known) -> Result<Vec<u8>, FileError> {
    known.check().map_err(FileError::Damaged)?;
    let body = json(known)?;
    let head = Head {
        format: FORMAT.to_owned(),
        version: LEARNED_VERSION.into(),
        bytes: body.len() as u64,
        crc32: checksum(&body),
    };
    let mut file = json(&head)?;
    file.push(b'\n');
    file.extend(body);
    if file.len() > FILE_BYTES_MAX { Err(FileError::TooLarge(file.len())) } else { Ok(file) }
}

/// What a file says. Never panics, whatever the bytes.
///
/// # Errors
/// As [`FileError`] states, for anything but a complete and valid file of this version.
pub fn decode(bytes: &[u8]) -> Result<Known, FileError> {
    let damaged = |what: &str| FileError::Damaged(what.to_owned());
    let end = bytes.iter().take(HEAD_BYTES_MAX).position(|byte| *byte == b'\n');
    let (head, body) = bytes.split_at(end.ok_or_else(|| damaged("it has no head"))?);
    let head: Head = serde_json::from_slice(head).map_err(|_| damaged("its head is no head"))?;
    if head.format != FORMAT {
        return Err(damaged("it is of something else"));
    }
    if head.version != u64::from(LEARNED_VERSION) {
        return Err(FileError::Version { found: head.version });
    }
    let body = &body[1..];
    if head.bytes != body.len() as u64 {
        return Err(damaged("it is not complete"));
    }
    if head.crc32 != checksum(body) {
        return Err(damaged("its checksum is wrong"));
    }
    let known: Known =
        serde_json::from_slice(body).map_err(|error| FileError::Damaged(error.to_string()))?;
    known.check().map_err(FileError::Damaged)?;
    Ok(known)
}

fn json(what: &impl Serialize) -> Result<Vec<u8>, FileError> {
    serde_json::to_vec(what).map_err(|error| FileError::Damaged(error.to_string()))
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Identity, LearnedFrame, PARTS, SiteFigures};
    use proptest::prelude::*;

    fn known() -> Known {
        let frame = LearnedFrame { module: "/bin/app".into(), build_id: "07".into(), address: 9 };
        let site = SiteFigures {
            hash: u64::MAX,
            value_ns: 0.1,
            part_value_ns: vec![0.25; PARTS],
            live_bytes: vec![4096, 0],
            frames: vec![frame],
            ..SiteFigures::default()
        };
        let sites = vec![site, SiteFigures::default()];
        Known { runs: 3, sites, ..Known::new(Identity::of_build_id(&[7]).unwrap(), "/bin/app") }
    }

    #[test]
    fn a_file_is_read_back() {
        assert_eq!(decode(&encode(&known()).unwrap()), Ok(known()));
    }

    #[test]
    fn every_damage_is_found() {
        let file = encode(&known()).unwrap();
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert!(decode(&damaged).is_err(), "byte {at}");
            assert!(decode(&file[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn other_versions_are_named_whatever_follows() {
        let head = r#"{"format":"tiercel learned","version":2,"bytes":1,"crc32":"x"}"#;
        assert_eq!(decode(format!("{head}\nxyz").as_bytes()), Err(FileError::Version { found: 2 }));
    }

    #[test]
    fn what_contradicts_itself_is_neither_written_nor_read() {
        let mut twice = known();
        twice.sites.push(SiteFigures::default());
        assert!(matches!(encode(&twice), Err(FileError::Damaged(_))));
        let mut negative = known();
        negative.sites[0].value_ns = -1.0;
        assert!(matches!(encode(&negative), Err(FileError::Damaged(_))));
        let body = serde_json::to_vec(&negative).unwrap();
        let (bytes, crc32) = (body.len() as u64, checksum(&body));
        let head = Head { format: FORMAT.into(), version: 1, bytes, crc32 };
        let file = [json(&head).unwrap(), b"\n".to_vec(), body].concat();
        let refused = decode(&file).unwrap_err();
        assert!(refused.to_string().contains("negative"), "{refused}");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode(&bytes).is_err());
        }
    }
}
