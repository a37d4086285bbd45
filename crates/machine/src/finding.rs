//! One fact about what this machine, kernel and permission set allow, as `tiercel doctor` shows it.
//! In: nothing. Out: [`Finding`], plain data that sampler, mover and daemon all report with.
//! Knows nothing of how a fact was found, or of how it is printed.

use serde::{Deserialize, Serialize};

/// How well something works here. Ordered from good to bad, so `max` is the worst of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Works as designed.
    Ok,
    /// Works, with less than there could be; `detail` says what is lost.
    Degraded,
    /// Does not work here.
    Absent,
}

/// One fact, its standing, and what the user can do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at, a short stable name in kebab-case: `move-pages`, `numa-balancing`.
    pub name: String,
    /// How well it works here.
    pub standing: Standing,
    /// What was seen, in one sentence without a final full stop.
    pub detail: String,
    /// What to do about it; empty when there is nothing to do.
    pub remedy: String,
}

impl Finding {
    /// A thing that works. `detail` says what was seen.
    pub fn ok(name: &str, detail: impl Into<String>) -> Finding {
        Finding {
            name: name.to_owned(),
            standing: Standing::Ok,
            detail: detail.into(),
            remedy: String::new(),
        }
    }

    /// A thing that works less well than it could, and what to do about it.
    pub fn degraded(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding {
            name: name.to_owned(),
            standing: Standing::Degraded,
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }

    /// A thing that does not work here, and what to do about it.
    pub fn absent(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding {
            name: name.to_owned(),
            standing: Standing::Absent,
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }
}
