//! The routines a policy is made of, as data: what can be chosen, and the defaults.
//! In: TOML or a word on the command line. Out: enums. Knows nothing of how a routine works.
//!
//! One grammar: in TOML `trigger = "time"` or `trigger = { time = { ticks = 3 } }`; on the command
//! line `time` or `time:ticks=3`. Everything left out has its default.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

use crate::expression::Expression;

/// A word that names no routine, or an option it does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{routine} `{text}`: {what}")]
pub struct RoutineError {
    /// The routine that was to be chosen.
    pub routine: &'static str,
    /// The text as written.
    pub text: String,
    /// What is wrong with it.
    pub what: String,
}

/// How an interval's accesses join those before (MAT 3.4.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "kebab-case")]
pub enum Aggregate {
    /// Exponentially weighted moving average (MAT Eq. 1).
    Ewma(Ewma),
}

/// Weight of the newest interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ewma {
    /// 0 < alpha <= 1; 0.1 by default (MAT 4.5.1).
    pub alpha: f64,
}

/// Which extents deserve the best tier (MAT 3.4.2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "kebab-case")]
pub enum Prioritise {
    /// The youngest objects (MAT).
    Fifo,
    /// The most recently accessed (MAT).
    Lru,
    /// Accesses per byte (MAT).
    Apb,
    /// Stall time per byte, as it would be in the slowest tier. The same as `apb` where no sample
    /// carries a latency.
    #[default]
    Cpb,
    /// The oldest objects: first come, first served. A baseline.
    FirstCome,
    /// What the user's expression gives; higher deserves more.
    Expression(Expression),
}

/// When tiers are assigned anew (MAT 3.4.3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "kebab-case")]
pub enum Trigger {
    /// Every few ticks.
    Time(Time),
    /// When the last-level cache misses per instruction change.
    Llcmpi(Llcmpi),
    /// When so much was allocated.
    Allocation(Allocation),
    /// Never: what is first touched stays where the kernel put it. A baseline.
    Never,
}

/// Every `ticks` ticks; sooner at first, so that a program of some seconds gains as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Time {
    /// 5 by default (MAT 5.3.1).
    pub ticks: u32,
    /// Ticks until the first assignment, which double until they are `ticks`; 1 by default. As many
    /// as `ticks`: as in MAT.
    pub first: u32,
}

/// When |misses per instruction - their mean over `intervals`| / mean exceeds `threshold`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Llcmpi {
    /// 2 by default (MAT 5.3.1).
    pub threshold: f64,
    /// Intervals before the newest that the mean is over; 10 by default (MAT 3.4.3).
    pub intervals: u32,
}

/// When objects of `bytes` bytes became records since the last assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Allocation {
    /// 1 GiB by default (MAT 5.3.1). In TOML a number or a text as `"512 MiB"`.
    #[serde(deserialize_with = "bytes")]
    pub bytes: u64,
}

/// How priorities become tiers (MAT 3.4.4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "kebab-case")]
pub enum Enforce {
    /// Fill the best tier in order of priority, then the next.
    Fill(Fill),
}

/// Fill this share of what a tier's budget allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fill {
    /// 1 to 100; 90 by default: the rest is for what is born before the next assignment (MAT
    /// 4.5.1).
    pub percent: u32,
    /// Keep that rest only as far as it was needed recently, so that a program that has allocated
    /// all its objects can use the whole budget. MAT always keeps it.
    pub follow_births: bool,
}

/// What is in front of the mover.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "kebab-case")]
pub enum Gate {
    /// Nothing: every assignment is enforced at once, as in MAT.
    None,
    /// Shadow placements find out what pays, and nothing else moves. They order extents
    /// themselves.
    Shadow(ShadowGate),
}

impl Gate {
    /// The gate's settings; `None` without one.
    pub fn shadow(&self) -> Option<&ShadowGate> {
        match self {
            Gate::Shadow(shadow) => Some(shadow),
            Gate::None => None,
        }
    }
}

/// Shadow placements with a loss budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShadowGate {
    /// Share of the run time that moves may cost without having brought anything, 0 to 1; 0.01 by
    /// default.
    pub loss: f64,
    /// Initial estimate of the cost of moving a byte, until it is measured, where the machine's
    /// bandwidths are unknown, nanoseconds. 0.7: move_pages of 4 KiB at about 3 us each.
    pub move_ns_per_byte: f64,
    /// Bytes moved per second at most, over the time since the last decision; 0: no limit. 1 GiB/s
    /// is what one mover thread reaches at the default cost, with some to spare.
    #[serde(deserialize_with = "bytes")]
    pub bytes_per_s: u64,
}

impl Default for Ewma {
    fn default() -> Ewma {
        Ewma { alpha: 0.1 }
    }
}

impl Default for Time {
    fn default() -> Time {
        Time { ticks: 5, first: 1 }
    }
}

impl Default for Llcmpi {
    fn default() -> Llcmpi {
        Llcmpi { threshold: 2.0, intervals: 10 }
    }
}

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation { bytes: 1 << 30 }
    }
}

impl Default for Fill {
    fn default() -> Fill {
        Fill { percent: 90, follow_births: true }
    }
}

impl Default for ShadowGate {
    fn default() -> ShadowGate {
        ShadowGate { loss: 0.01, move_ns_per_byte: 0.7, bytes_per_s: 1 << 30 }
    }
}

impl Default for Aggregate {
    fn default() -> Aggregate {
        Aggregate::Ewma(Ewma::default())
    }
}

impl Default for Trigger {
    fn default() -> Trigger {
        Trigger::Time(Time::default())
    }
}

impl Default for Enforce {
    fn default() -> Enforce {
        Enforce::Fill(Fill::default())
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::Shadow(ShadowGate::default())
    }
}

impl Prioritise {
    /// Whether it orders by sampled accesses.
    pub(crate) fn needs_accesses(&self) -> bool {
        !matches!(self, Prioritise::Fifo | Prioritise::FirstCome)
    }
}

/// The two forms of each routine, and its way back to the command line's form.
macro_rules! routine {
    ($type:ident, $name:literal, $forms:literal, plain [$($plain:literal),*]) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Form;
                impl<'de> Visitor<'de> for Form {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($forms)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$type, A::Error> {
                        $type::deserialize(MapAccessDeserializer::new(map))
                    }
                }
                deserializer.deserialize_any(Form)
            }
        }

        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $type::serialize(self, serializer)
            }
        }

        impl FromStr for $type {
            type Err = RoutineError;

            fn from_str(text: &str) -> Result<$type, RoutineError> {
                let err = |what| RoutineError { routine: $name, text: text.to_owned(), what };
                let value = to_toml(text, &[$($plain),*]).map_err(err)?;
                $type::deserialize(value).map_err(|error| err(one_line(&error)))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = toml::Value::try_from(self).map_err(|_| fmt::Error)?;
                f.write_str(&from_toml(&value))
            }
        }
    };
}

routine!(Aggregate, "aggregate", "`ewma`, with options as `{ ewma = { alpha = 0.1 } }`", plain []);
routine!(
    Prioritise,
    "prioritise",
    "`fifo`, `lru`, `apb`, `cpb`, `first-come` or `{ expression = \"reads / bytes\" }`",
    plain ["fifo", "lru", "apb", "cpb", "first-come"]
);
routine!(
    Trigger,
    "trigger",
    "`time`, `llcmpi`, `allocation` or `never`, with options as `{ time = { ticks = 5 } }`",
    plain["never"]
);
routine!(Enforce, "enforce", "`fill`, with options as `{ fill = { percent = 90 } }`", plain []);
routine!(
    Gate,
    "gate",
    "`none` or `shadow`, with options as `{ shadow = { loss = 0.01 } }`",
    plain["none"]
);

/// `name`, `name:key=value,key=value` or `expression:...` as the TOML value of the same meaning.
fn to_toml(text: &str, plain: &[&str]) -> Result<toml::Value, String> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let name = name.trim();
    if name == "expression" {
        return Ok(table(name, toml::Value::String(options.trim().to_owned())));
    }
    if plain.contains(&name) {
        let value = toml::Value::String(name.to_owned());
        return if options.is_empty() { Ok(value) } else { Err(format!("{name} has no options")) };
    }
    let mut fields = toml::Table::new();
    for option in options.split(',').filter(|option| !option.trim().is_empty()) {
        let (key, value) = option
            .split_once('=')
            .ok_or_else(|| format!("option `{option}` is not of the form key=value"))?;
        fields.insert(key.trim().to_owned(), scalar(value.trim()));
    }
    Ok(table(name, toml::Value::Table(fields)))
}

fn table(name: &str, value: toml::Value) -> toml::Value {
    toml::Value::Table([(name.to_owned(), value)].into_iter().collect())
}

fn scalar(text: &str) -> toml::Value {
    if let Ok(truth) = text.parse::<bool>() {
        return toml::Value::Boolean(truth);
    }
    if let Ok(number) = text.parse::<i64>() {
        return toml::Value::Integer(number);
    }
    text.parse::<f64>().map_or_else(|_| toml::Value::String(text.to_owned()), toml::Value::Float)
}

fn from_toml(value: &toml::Value) -> String {
    match value {
        toml::Value::Table(table) => {
            table.iter().map(|(name, value)| with_options(name, value)).collect()
        }
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn with_options(name: &str, value: &toml::Value) -> String {
    let options = match value {
        toml::Value::Table(fields) => fields
            .iter()
            .map(|(key, value)| format!("{key}={}", from_toml(value)))
            .collect::<Vec<_>>()
            .join(","),
        other => from_toml(other),
    };
    format!("{name}:{options}")
}

/// serde's message without TOML's position, which means nothing on a command line.
fn one_line(error: &toml::de::Error) -> String {
    error.message().trim().replace('\n', "; ")
}

/// A number of bytes or a text such as `"1 GiB"`.
pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(u64),
        Text(String),
    }
    match Form::deserialize(deserializer) {
        Ok(Form::Number(number)) => Ok(number),
        Ok(Form::Text(text)) => tiercel_machine::parse_bytes(&text).map_err(de::Error::custom),
        Err(_) => Err(de::Error::custom("want bytes, as 1073741824 or \"1 GiB\"")),
    }
}
