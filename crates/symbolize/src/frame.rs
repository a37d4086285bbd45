//! Frames of stacks, and their names. In: values. Out: the same as text and JSON. Knows nothing of
//! how names are found.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One return address, innermost first in a stack, in a form that outlives its process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SiteFrame {
    /// File of the module; empty for generated code.
    #[serde(with = "file")]
    pub path: Arc<Path>,
    /// GNU build-id, empty when there is none.
    #[serde(with = "hex")]
    pub build_id: Arc<[u8]>,
    /// ELF virtual address of the return address; absolute where there is no module.
    pub addr: u64,
}

impl SiteFrame {
    /// The file name of its module.
    pub fn module_name(&self) -> String {
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "an unknown module".to_owned())
    }

    /// `libfoo.so+0x1234`.
    pub fn place(&self) -> String {
        match self.path.file_name() {
            Some(name) => format!("{}+{:#x}", name.to_string_lossy(), self.addr),
            None => format!("{:#x}", self.addr),
        }
    }
}

/// Static data of a module that has a name of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSymbol {
    /// ELF virtual address of its first byte.
    pub addr: u64,
    /// Bytes.
    pub bytes: u64,
    /// Demangled.
    pub name: Arc<str>,
}

/// A frame with its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Demangled; empty when no symbol covers the address.
    pub function: String,
    /// Source file and line, where debug information has them.
    #[serde(serialize_with = "file::serialize_line")]
    pub line: Option<(PathBuf, u32)>,
    /// `module+0xaddress`, always.
    pub place: String,
}

impl Named {
    /// `function file.c:12`, `function (module+0x12)` or `module+0x12`.
    pub fn short(&self) -> String {
        match (&self.line, self.function.is_empty()) {
            (Some((file, line)), false) => {
                let file = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
                format!("{} {file}:{line}", self.function)
            }
            (None, false) => format!("{} ({})", self.function, self.place),
            (_, true) => self.place.clone(),
        }
    }
}

/// Paths as text: JSON has no other, and a path may be any bytes. Those that are not UTF-8 become
/// U+FFFD, so that a path read from JSON may name no file.
mod file {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    pub(super) fn serialize<S: Serializer>(path: &Arc<Path>, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&path.to_string_lossy())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Path>, D::Error> {
        Ok(PathBuf::from(String::deserialize(from)?).into())
    }

    pub(super) fn serialize_line<S: Serializer>(
        line: &Option<(PathBuf, u32)>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        line.as_ref().map(|(file, line)| (file.to_string_lossy(), line)).serialize(out)
    }
}

/// Bytes as hexadecimal text.
pub mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use std::sync::Arc;

    /// For serde's `with`.
    pub fn serialize<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&text(bytes))
    }

    /// For serde's `with`.
    ///
    /// # Errors
    /// What is not pairs of hexadecimal digits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[u8]>, D::Error> {
        let text = String::deserialize(from)?;
        bytes(&text).ok_or_else(|| de::Error::custom("hexadecimal digits in pairs expected"))
    }

    /// Two digits a byte.
    pub fn text(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }

    /// The other way; `None` for what is not pairs of hexadecimal digits.
    pub fn bytes(text: &str) -> Option<Arc<[u8]>> {
        if !text.is_ascii() || !text.len().is_multiple_of(2) {
            return None;
        }
        let pair = |i: usize| u8::from_str_radix(&text[i * 2..i * 2 + 2], 16).ok();
        (0..text.len() / 2).map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn every_path_can_be_written_as_json() {
        for (bytes, text) in [
            (&b"/a/\"b"[..], "/a/\"b"),
            (&b"/fran\xe7ois"[..], "/fran\u{fffd}ois"),
            (&b"\xa9/cut"[..], "\u{fffd}/cut"),
        ] {
            let path = Path::new(OsStr::from_bytes(bytes));
            let frame = SiteFrame { path: path.into(), build_id: [1].into(), addr: 2 };
            let json = serde_json::to_value(&frame).unwrap();
            assert_eq!(json["path"], text);
            let back: SiteFrame = serde_json::from_value(json).unwrap();
            assert_eq!(back, SiteFrame { path: Path::new(text).into(), ..frame });
            let line = Some((path.to_owned(), 3));
            let named = Named { line, ..Named::default() };
            let json = serde_json::to_value(&named).unwrap();
            assert_eq!(json["line"], serde_json::json!([text, 3]));
        }
    }
}
