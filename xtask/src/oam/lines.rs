//! Stored lines of OAM's evaluation in replay. In: what `tiercel replay --json` printed. Out: a
//! line for each policy and size, and for each program. Knows nothing of files.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What was replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Set {
    /// Recorded workloads.
    Programs,
    /// Made streams.
    Made,
}

/// A policy with one size of fast memory, over all streams of a set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StandingLine {
    pub set: Set,
    pub machine: String,
    /// What of the machine is changed.
    pub changed: Option<String>,
    #[serde(flatten)]
    pub standing: Standing,
}

/// As replay prints it: over interleave, geometric means.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Standing {
    pub policy: String,
    pub per_mille: u64,
    pub comparisons: usize,
    pub time: f64,
    pub energies: Vec<Energy>,
    pub moved: Option<f64>,
    pub moving: Option<f64>,
    pub fast_share: Option<f64>,
    pub written_slow: Option<f64>,
}

/// Over interleave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Energy {
    pub static_times: f64,
    pub joules: f64,
    pub edp: f64,
}

/// A program with one size of fast memory: each policy over interleave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramLine {
    pub program: String,
    pub machine: String,
    pub per_mille: u64,
    pub peak_bytes: u64,
    /// Time with everything in fast memory, seconds.
    pub all_fast_s: f64,
    pub policies: BTreeMap<String, Ratio>,
}

/// A run over interleave's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ratio {
    pub time: f64,
    /// With static power as the machine's description has it; `None` where energies are unknown.
    pub edp: Option<f64>,
}

impl StandingLine {
    /// Of everything that replay printed about energies.
    pub fn all(
        printed: &Value,
        set: Set,
        machine: &str,
        changed: Option<&str>,
    ) -> Result<Vec<StandingLine>> {
        let standings: Vec<Standing> = serde_json::from_value(printed["energy"].clone())?;
        let line = |standing| StandingLine {
            set,
            machine: machine.to_owned(),
            changed: changed.map(str::to_owned),
            standing,
        };
        Ok(standings.into_iter().map(line).collect())
    }
}

/// A line for each program and size.
pub fn programs_of(printed: &Value, machine: &str) -> Result<Vec<ProgramLine>> {
    let comparisons = printed["comparisons"].as_array().context("no comparisons")?;
    comparisons.iter().map(|one| program_of(one, machine)).collect()
}

fn program_of(one: &Value, machine: &str) -> Result<ProgramLine> {
    let number = |key: &str| one[key].as_f64().with_context(|| key.to_owned());
    let whole = |key: &str| one[key].as_u64().with_context(|| key.to_owned());
    let stream = one["stream"].as_str().context("stream")?;
    let name = stream.rsplit('/').next().unwrap_or(stream);
    let turns = &one["interleave"];
    let results = one["results"].as_array().context("results")?;
    let mut policies = BTreeMap::new();
    for result in results {
        let policy = result["name"].as_str().context("name")?;
        policies.insert(policy.to_owned(), ratio(&result["runs"][0], turns)?);
    }
    let bound_ns = one["paid"]["bound_ns"].as_f64().context("bound")?;
    let time = bound_ns / turns["time_ns"].as_f64().context("time of interleave")?;
    policies.insert("bound".to_owned(), Ratio { time, edp: None });
    Ok(ProgramLine {
        program: name.trim_end_matches(".profile").to_owned(),
        machine: machine.to_owned(),
        per_mille: whole("per_mille")?,
        peak_bytes: whole("peak_bytes")?,
        all_fast_s: number("all_fast_ns")? / 1e9,
        policies,
    })
}

fn ratio(run: &Value, turns: &Value) -> Result<Ratio> {
    let time_ns = |of: &Value| of["time_ns"].as_f64().context("time of a run");
    let time = time_ns(run)? / time_ns(turns)?;
    let edp = joules(run).zip(joules(turns)).map(|(own, turns)| own / turns * time);
    Ok(Ratio { time, edp })
}

/// All of a run's energy, static power as described.
fn joules(run: &Value) -> Option<f64> {
    let parts = ["accesses_j", "moves_j", "holding_j"];
    parts.iter().map(|part| run["joules"][part].as_f64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_compared_with_interleave() {
        let joules = |j: f64| serde_json::json!({"accesses_j": j, "moves_j": 1.0, "holding_j": 0});
        let one = serde_json::json!({
            "stream": "/somewhere/app.profile", "per_mille": 250, "peak_bytes": 4096,
            "all_fast_ns": 2e9, "paid": {"bound_ns": 3e9},
            "interleave": {"time_ns": 4e9, "joules": joules(7.0)},
            "results": [{"name": "joint", "runs": [{"time_ns": 3e9, "joules": joules(3.0)}]},
                        {"name": "other", "runs": [{"time_ns": 8e9, "joules": null}]}],
        });
        let line = program_of(&one, "pcm").expect("a comparison");
        assert_eq!((line.program.as_str(), line.per_mille, line.all_fast_s), ("app", 250, 2.0));
        let of = |policy: &str| (line.policies[policy].time, line.policies[policy].edp);
        assert_eq!(of("joint"), (0.75, Some(0.375)));
        assert_eq!((of("other"), of("bound")), ((2.0, None), (0.75, None)));
        assert!(program_of(&serde_json::json!({}), "pcm").is_err());
    }
}
