//! The `[pages]` table of a configuration.
//! In: TOML. Out: a checked [`PagesConfig`]. Knows nothing of how a mode works.

use serde::{Deserialize, Serialize};
use tiercel_ledger::regions::LEVEL_MAX;

use crate::config::{ConfigError, ensure};

/// Shortest and longest window, milliseconds. A pass of the kernel's scan takes at least 100 ms
/// (`scan_period_min_ms` is 1000, and the lab scales it by ten); after a minute a history of eight
/// windows is older than most phases.
const WINDOW_MS: std::ops::RangeInclusive<u64> = 20..=60_000;

/// What was seen in one history is believed for so many. Chosen, not measured.
const HISTORIES: f64 = 4.0;

/// What happens when the memory near an accessor is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// What gains most by estimate, or nothing.
    #[default]
    Benefit,
    /// The next best node with room (AutoTiering 4.1, CPM).
    Cpm,
    /// The same, and exchanges between nodes of the best tier (CPMX).
    Cpmx,
    /// A victim is demoted first (AutoTiering 4.2, OPM).
    Opm,
    /// The same; victim and unit change places where that suits both (OPMX).
    Opmx,
    /// Promotion into a reserve that is refilled afterwards (AutoTiering 4.3, OPM(BD)).
    OpmBd,
}

/// The `[pages]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PagesConfig {
    /// See [`Mode`].
    pub mode: Mode,
    /// Windows of a history, 1 to 8; 8 by default (AutoTiering 4.2.1).
    pub history: u8,
    /// Length of a window where no sampler ends it, milliseconds; 1000 by default, the kernel's
    /// `scan_period_min_ms`.
    pub window_ms: u64,
    /// Bytes kept free on each node of the best tier, for exchanges and promotions; 0: 16 OS pages
    /// for each CPU (AutoTiering 4.3 has 16).
    #[serde(deserialize_with = "crate::routine::bytes")]
    pub reserve: u64,
    /// How long today's access rates are believed to last, seconds: a move pays if it saves more
    /// than it costs in that time. 0, the default: as long as four histories, 32 s.
    pub horizon_s: f64,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 6] =
        [Mode::Benefit, Mode::Cpm, Mode::Cpmx, Mode::Opm, Mode::Opmx, Mode::OpmBd];

    /// As the user types it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Benefit => "benefit",
            Mode::Cpm => "cpm",
            Mode::Cpmx => "cpmx",
            Mode::Opm => "opm",
            Mode::Opmx => "opmx",
            Mode::OpmBd => "opm-bd",
        }
    }

    /// Whether it keeps a part of the best tier free.
    pub fn has_reserve(self) -> bool {
        !matches!(self, Mode::Cpm | Mode::Opm)
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let names = Mode::ALL.map(Mode::name).join(", ");
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("no mode `{text}`; there are {names}"))
    }
}

impl Default for PagesConfig {
    fn default() -> PagesConfig {
        PagesConfig {
            mode: Mode::default(),
            history: LEVEL_MAX,
            window_ms: 1000,
            reserve: 0,
            horizon_s: 0.0,
        }
    }
}

impl PagesConfig {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let ok = (1..=LEVEL_MAX).contains(&self.history);
        ensure("pages.history", f64::from(self.history), ok, "must be from 1 to 8")?;
        let ok = WINDOW_MS.contains(&self.window_ms);
        ensure("pages.window_ms", self.window_ms as f64, ok, "must be from 20 to 60000")?;
        let ok = self.horizon_s >= 0.0 && self.horizon_s.is_finite();
        ensure("pages.horizon_s", self.horizon_s, ok, "must be at least 0")
    }

    /// How long rates are believed to last, seconds.
    pub fn horizon_s(&self) -> f64 {
        let history_s = self.window_ms as f64 / 1e3 * f64::from(self.history);
        if self.horizon_s > 0.0 { self.horizon_s } else { HISTORIES * history_s }
    }

    /// Refuses a reserve that the smallest node of the best tier could not hold beside anything
    /// else.
    pub fn check_reserve(&self, smallest_bytes: u64) -> Result<(), ConfigError> {
        let ok = self.reserve <= smallest_bytes / 2;
        let want = "must be at most half of the smallest node of the best tier";
        ensure("pages.reserve", self.reserve as f64, ok, want)
    }
}
