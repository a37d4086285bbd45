//! Sites and modules, decoded from copies of their table entries.
//! In: 256 or 512 bytes. Out: a [`Site`] or [`Module`], or nothing when the entry is not published
//! or not valid. Knows nothing of symbols: the daemon finds names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::layout::{
    BUILD_ID_MAX, MODULE_BUILD_ID, MODULE_BUILD_ID_BYTES, MODULE_BYTES, MODULE_PATH,
    MODULE_PATH_BYTES, MODULE_PUBLISHED, NO_MODULE, PATH_MAX, SITE_BYTES, SITE_FRAME_COUNT,
    SITE_FRAMES, SITE_FRAMES_AT, SITE_KIND, SITE_PUBLISHED,
};

/// What made the objects of a site: `tcl_site_kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum SiteKind {
    /// A call: the frames are its stack.
    #[default]
    Call = 0,
    /// The loader: writable static data of a module, from the address of the only frame on.
    Static = 1,
    /// The same, of data that is only read.
    Constant = 2,
    /// The kernel: the stack of the first thread.
    MainStack = 3,
    /// The C library: the stack of another thread.
    Stack = 4,
    /// A call that mapped memory which other mappings may show as well.
    Shared = 5,
    /// A call that mapped a file privately.
    File = 6,
}

impl SiteKind {
    /// What a client states; anything unknown is a call.
    fn from_wire(kind: u16) -> SiteKind {
        use SiteKind::{Call, Constant, File, MainStack, Shared, Stack, Static};
        let all = [Call, Static, Constant, MainStack, Stack, Shared, File];
        all.get(usize::from(kind)).copied().unwrap_or_default()
    }
}

/// Where an object was allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Stable from run to run: over (build-id, offset) of every frame.
    pub hash: u64,
    /// Innermost first, without the allocator's frames.
    pub frames: Vec<Frame>,
    /// What made its objects.
    pub kind: SiteKind,
}

/// One return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Index into the module table; `None` for generated code.
    pub module: Option<u16>,
    /// ELF virtual address in the module, or the absolute address where there is none.
    pub offset: u64,
}

/// A loaded ELF object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Load address: an absolute address minus this is the ELF virtual address.
    pub base: u64,
    /// GNU build-id, empty when the module has none.
    pub build_id: Vec<u8>,
    /// Its path, or the tail of a long one.
    pub path: PathBuf,
}

impl Site {
    pub(crate) fn decode(entry: &[u8; SITE_BYTES]) -> Option<Site> {
        if half(entry, SITE_PUBLISHED) != 1 {
            return None;
        }
        let count = usize::from(quarter(entry, SITE_FRAME_COUNT));
        if count > SITE_FRAMES {
            return None;
        }
        let frames =
            (0..count).map(|i| Frame::decode(word(entry, SITE_FRAMES_AT + i * 8))).collect();
        let kind = SiteKind::from_wire(quarter(entry, SITE_KIND));
        Some(Site { hash: word(entry, 0), frames, kind })
    }
}

impl Frame {
    /// From its wire form: module in the top 16 bits, offset below.
    #[must_use]
    pub fn decode(word: u64) -> Frame {
        let module = (word >> 48) as u16;
        Frame { module: (module != NO_MODULE).then_some(module), offset: word & ((1 << 48) - 1) }
    }

    /// To its wire form.
    #[must_use]
    pub fn encode(self) -> u64 {
        u64::from(self.module.unwrap_or(NO_MODULE)) << 48 | self.offset & ((1 << 48) - 1)
    }
}

impl Module {
    pub(crate) fn decode(entry: &[u8; MODULE_BYTES]) -> Option<Module> {
        let id_bytes = usize::from(entry[MODULE_BUILD_ID_BYTES]);
        let path_bytes = usize::from(entry[MODULE_PATH_BYTES]);
        if half(entry, MODULE_PUBLISHED) != 1 || id_bytes > BUILD_ID_MAX || path_bytes > PATH_MAX {
            return None;
        }
        let path = OsStr::from_bytes(&entry[MODULE_PATH..MODULE_PATH + path_bytes]);
        Some(Module {
            base: word(entry, 0),
            build_id: entry[MODULE_BUILD_ID..MODULE_BUILD_ID + id_bytes].to_vec(),
            path: PathBuf::from(path),
        })
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn quarter(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unpublished_and_oversized_entries_are_ignored() {
        let mut site = [0u8; SITE_BYTES];
        assert_eq!(Site::decode(&site), None);
        site[SITE_PUBLISHED] = 1;
        assert_eq!(Site::decode(&site), Some(Site::default()));
        site[SITE_FRAME_COUNT] = 31;
        assert_eq!(Site::decode(&site), None);
        let mut module = [0u8; MODULE_BYTES];
        module[MODULE_PUBLISHED] = 1;
        module[MODULE_BUILD_ID_BYTES] = 21;
        assert_eq!(Module::decode(&module), None);
    }

    proptest! {
        #[test]
        fn frames_are_kept(module in proptest::option::of(0u16..0xffff), offset in 0u64..1 << 48) {
            let frame = Frame { module, offset };
            prop_assert_eq!(Frame::decode(frame.encode()), frame);
        }
    }
}
