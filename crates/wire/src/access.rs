//! Which code accesses memory, and in what order. In: nothing. Out: types of samples and records.
//! Knows nothing of how either is found.

/// In what order code goes through memory, as far as it shows.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// None that the code shows.
    #[default]
    Random,
    /// Line by line.
    Sequential,
    /// By more than a line, the same each time.
    Strided,
    /// To where what was loaded before says.
    Chased,
}

impl Pattern {
    /// All of them, by their number on the wire.
    pub const ALL: [Pattern; 4] =
        [Pattern::Random, Pattern::Sequential, Pattern::Strided, Pattern::Chased];

    /// Its word in profiles and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
            Pattern::Strided => "strided",
            Pattern::Chased => "chased",
        }
    }

    /// The pattern of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Pattern> {
        Pattern::ALL.into_iter().find(|pattern| pattern.name() == name)
    }
}

/// Code that accesses memory: an instruction of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct AccessedBy {
    /// The process's number of a site whose only frame is that instruction.
    pub number: u16,
    /// In what order it accesses.
    pub pattern: Pattern,
}
