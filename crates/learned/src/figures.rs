//! The figures of a program's sites: of one run, and of all runs together.
//! In: nothing. Out: plain data, with what it must satisfy. Knows nothing of files.
//!
//! ```text
//!   Known -- sites -- value, live bytes over time, samples   sums over runs, faded
//!                  '- snapshots of live bytes                of the last whole run
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

/// Sites that are kept of a program, those that matter most: a page-long table has 50, and the
/// programs of docs/real-programs.md have at most some hundred that samples hit.
pub const SITES_MAX: usize = 1024;
/// Moments of a run at which it is kept what lived: what lives at the same time competes for room.
/// Chosen, not measured: halves of the 16 parts into which a budget is cut.
pub const SNAPSHOTS_MAX: usize = 32;
/// Parts of equal size into which large objects are divided.
pub const PARTS: usize = 8;
/// Frames that are kept of a stack, for its name.
pub const FRAMES_MAX: usize = 8;
/// Longest text of a figure, bytes: PATH_MAX of linux/limits.h.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;
/// Longest identity: a SHA-512 in hexadecimal.
const IDENTITY_MAX: usize = 128;

/// Which build of which program it is: a build-id, or a hash of the file; hexadecimal with a prefix
/// that says which. It is part of a file's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Identity(String);

impl Identity {
    /// Of a GNU build-id.
    pub fn of_build_id(id: &[u8]) -> Option<Identity> {
        Identity::with("build", id)
    }

    /// Of the bytes of a file without one.
    pub fn of_hash(hash: &[u8]) -> Option<Identity> {
        Identity::with("file", hash)
    }

    fn with(kind: &str, bytes: &[u8]) -> Option<Identity> {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Identity::try_from(format!("{kind}-{digits}")).ok()
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Identity {
    type Error = String;

    fn try_from(text: String) -> Result<Identity, String> {
        let digits = text.strip_prefix("build-").or(text.strip_prefix("file-")).unwrap_or("");
        let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        match (1..=IDENTITY_MAX).contains(&digits.len()) && digits.bytes().all(is_hex) {
            true => Ok(Identity(text)),
            false => Err(format!("{text:?} does not identify a build")),
        }
    }
}

impl From<Identity> for String {
    fn from(identity: Identity) -> String {
        identity.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What the memory of a site is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteUse {
    /// Objects, or blocks of small allocations of this site alone.
    #[default]
    Objects,
    /// Blocks that several sites share.
    Mixed,
    /// Memory that no allocation made: it takes room, and is not placed at birth.
    Data,
}

/// A return address, as it names a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedFrame {
    /// Path of the module; empty for generated code.
    pub module: String,
    /// Its GNU build-id, hexadecimal.
    pub build_id: String,
    /// ELF virtual address in it.
    pub address: u64,
}

/// What was learned of a site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteFigures {
    /// Over (build-id, offset) of every frame; 0: of no known site.
    #[serde(with = "hash")]
    pub hash: u64,
    /// What its memory is.
    pub kind: SiteUse,
    /// Name of static data; empty where the frames name the site.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The innermost frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<LearnedFrame>,
    /// Births and their bytes.
    pub births: f64,
    /// See `births`.
    pub born_bytes: f64,
    /// Samples that hit its objects.
    pub samples: f64,
    /// Accesses that they stand for.
    pub accesses: f64,
    /// What these would save in the fastest memory over the slowest, nanoseconds.
    pub value_ns: f64,
    /// Bytes that lived, times how long, seconds.
    pub live_byte_s: f64,
    /// Most bytes that lived at a time, in the last whole run.
    pub peak_bytes: u64,
    /// Value by part of its large objects, first part first, nanoseconds; empty: it had none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_value_ns: Vec<f64>,
    /// Bytes that lived at the moments of the last whole run; empty: it had none then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live_bytes: Vec<u64>,
    /// Whole runs since it was met last.
    #[serde(default)]
    pub unseen_runs: u32,
}

/// What one run learned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFigures {
    /// How long it took, seconds.
    pub elapsed_s: f64,
    /// Most bytes of objects at a time.
    pub peak_bytes: u64,
    /// Its sites.
    pub sites: Vec<SiteFigures>,
}

/// What all runs of a build learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Which build.
    pub identity: Identity,
    /// Path of its executable at the last run.
    pub program: String,
    /// Runs that were learned from.
    pub runs: u64,
    /// When the last one ended, seconds since 1970.
    pub updated_s: u64,
    /// How long the last whole run took, seconds.
    pub elapsed_s: f64,
    /// Most bytes of objects at a time, in the last whole run.
    pub peak_bytes: u64,
    /// Its sites, those of most value first.
    pub sites: Vec<SiteFigures>,
}

impl SiteFigures {
    /// Bytes of a birth, mean.
    pub fn birth_bytes(&self) -> f64 {
        if self.births > 0.0 { self.born_bytes / self.births } else { 0.0 }
    }

    /// How long a byte lived, mean, seconds (Little's law); 0 without births.
    pub fn lifetime_s(&self) -> f64 {
        if self.born_bytes > 0.0 { self.live_byte_s / self.born_bytes } else { 0.0 }
    }

    /// Relative standard deviation of its value by sampling alone, at most 1.
    pub fn uncertainty(&self) -> f64 {
        1.0 / self.samples.max(1.0).sqrt()
    }

    fn check(&self) -> Result<(), String> {
        let sums = [
            self.births,
            self.born_bytes,
            self.samples,
            self.accesses,
            self.value_ns,
            self.live_byte_s,
        ];
        let mut figures = sums.iter().chain(&self.part_value_ns);
        let is_sum = |figure: &f64| figure.is_finite() && *figure >= 0.0;
        let texts = self.frames.iter().flat_map(|frame| [&frame.module, &frame.build_id]);
        match () {
            () if !figures.all(is_sum) => Err("a figure is negative or no number".into()),
            () if !matches!(self.part_value_ns.len(), 0 | PARTS) => Err("not all parts".into()),
            () if self.live_bytes.len() > SNAPSHOTS_MAX => Err("too many snapshots".into()),
            () if self.frames.len() > FRAMES_MAX => Err("too many frames".into()),
            () if texts.chain([&self.name]).any(|text| text.len() > TEXT_BYTES_MAX) => {
                Err("a text is too long".into())
            }
            () => Ok(()),
        }
    }
}

impl RunFigures {
    /// Samples that hit objects.
    pub fn samples(&self) -> f64 {
        self.sites.iter().map(|site| site.samples).sum()
    }
}

impl Known {
    /// Of a build of which nothing is known.
    pub fn new(identity: Identity, program: &str) -> Known {
        Known {
            identity,
            program: program.to_owned(),
            runs: 0,
            updated_s: 0,
            elapsed_s: 0.0,
            peak_bytes: 0,
            sites: Vec::new(),
        }
    }

    /// Samples that it rests on; those of earlier runs have faded.
    pub fn samples(&self) -> f64 {
        self.sites.iter().map(|site| site.samples).sum()
    }

    /// Value of all accesses, nanoseconds.
    pub fn value_ns(&self) -> f64 {
        self.sites.iter().map(|site| site.value_ns).sum()
    }

    /// Checks all invariants; the error is the first violation.
    pub fn check(&self) -> Result<(), String> {
        if self.sites.len() > SITES_MAX {
            return Err(format!("{} sites; at most {SITES_MAX}", self.sites.len()));
        }
        if self.program.len() > TEXT_BYTES_MAX || !self.elapsed_s.is_finite() {
            return Err("a program that cannot be, or a run without end".to_owned());
        }
        let mut hashes: Vec<u64> = self.sites.iter().map(|site| site.hash).collect();
        hashes.sort_unstable();
        if hashes.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("a site is there twice".to_owned());
        }
        self.sites.iter().try_for_each(|site| {
            site.check().map_err(|what| format!("site {:016x}: {what}", site.hash))
        })
    }
}

/// A hash as 16 hexadecimal digits: JSON's numbers do not hold 64 bits everywhere.
mod hash {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(hash: &u64, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{hash:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let is_hash = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bad = || de::Error::custom("a hash of 16 hexadecimal digits expected");
        is_hash.then(|| u64::from_str_radix(&text, 16).ok()).flatten().ok_or_else(bad)
    }
}
