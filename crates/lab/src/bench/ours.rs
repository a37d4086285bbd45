//! Runs by Tiercel: what it is told, and what it says.
//! In: [`Spec`]s. Out: words in front of the program, figures of the summary; before a planned run
//! a profile, recorded once in a boot, and a plan, both of which are kept. Knows nothing of
//! baselines.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::agent::Agent;
use super::plan::fingerprint;
use super::row::{Method, Spec};

/// Sites kept of a run.
const SITES_MAX: usize = 64;

/// What a boot brings back besides its rows.
const KEPT: &str = "out";

/// Digits of a fingerprint that tell profiles of one program apart.
const NAME_DIGITS: usize = 8;

impl Agent {
    /// What a run needs before it begins: its configuration, and its plan.
    pub(super) fn prepare(&self, spec: &Spec) -> Result<()> {
        let Some(config) = spec.method.config() else { return Ok(()) };
        let configure = |config: &str| {
            fs::write(self.configuration(), config).context("cannot write Tiercel's configuration")
        };
        let Method::Planned { plan, recorded, .. } = &spec.method else { return configure(config) };
        configure(recorded)?;
        let profile = self.profile(spec, recorded)?;
        configure(config)?;
        let mut words = vec!["plan".to_owned(), path_text(&profile)];
        words.extend(["--output".to_owned(), path_text(&self.plan())]);
        let fast = spec.fast_bytes.map_or("all".to_owned(), |bytes| format!("{bytes}B"));
        words.extend(["--fast".to_owned(), fast]);
        words.extend(plan.iter().cloned());
        self.tiercel(&words)?;
        let kept = self.root.join(KEPT).join(format!("{}.plan", spec.key));
        fs::copy(self.plan(), kept).context("cannot keep the plan")?;
        Ok(())
    }

    /// What goes in front of the program.
    pub(super) fn ours(&self, spec: &Spec) -> Result<Vec<String>> {
        let mut words = ["tiercel", "run", "--json"].map(str::to_owned).to_vec();
        words.extend(["--config".to_owned(), path_text(&self.configuration())]);
        words.extend(["--output".to_owned(), path_text(&self.scratch.join("summary.json"))]);
        if let Some(bytes) = spec.fast_bytes {
            words.extend(["--fast".to_owned(), format!("{bytes}B")]);
        }
        if let Method::Planned { .. } = spec.method {
            words.extend(["--plan".to_owned(), path_text(&self.plan())]);
            if !spec.run.iter().any(|word| word == "--adapt") {
                // Nobody decides by what they would see.
                words.extend(["--sampler", "none"].map(str::to_owned));
            }
        }
        words.extend(spec.run.iter().cloned());
        words.push("--".to_owned());
        Ok(words)
    }

    /// The figures of Tiercel's summary, without its sites; null without Tiercel.
    pub(super) fn summary(&self, spec: &Spec) -> Result<serde_json::Value> {
        if spec.method.config().is_none() {
            return Ok(serde_json::Value::Null);
        }
        let text = fs::read_to_string(self.scratch.join("summary.json"))
            .context("Tiercel left no summary")?;
        let mut value: serde_json::Value =
            serde_json::from_str(&text).context("Tiercel's summary is no JSON")?;
        let mut summary = value["summary"].take();
        summary["remarks"] = value["remarks"].take();
        summary["sites"] = sites(&value["sites"]);
        if let Method::Planned { recorded, .. } = &spec.method {
            summary["planned"] = planned(&fs::read_to_string(self.plan()).context("the plan")?)?;
            summary["planned"]["profile"] = profile_name(&spec.command, recorded).into();
        }
        Ok(summary)
    }

    /// The program's profile; recorded unless this boot has it.
    fn profile(&self, spec: &Spec, config: &str) -> Result<PathBuf> {
        let profile = self.root.join(KEPT).join(profile_name(&spec.command, config));
        if profile.exists() {
            return Ok(profile);
        }
        fs::create_dir_all(self.root.join(KEPT)).context("no room for a profile")?;
        let mut words = vec!["record".to_owned(), "--quiet".to_owned()];
        words.extend(["--config".to_owned(), path_text(&self.configuration())]);
        words.extend(["--output".to_owned(), path_text(&profile), "--".to_owned()]);
        words.extend(spec.command.iter().cloned());
        self.mark("begin");
        let recorded = self.tiercel(&words);
        self.mark("end");
        recorded.map(|()| profile)
    }

    fn tiercel(&self, words: &[String]) -> Result<()> {
        let into = |name: &str| File::create(self.scratch.join(name)).context("no room for output");
        let mut command = Command::new("tiercel");
        command.args(words).stdin(Stdio::null()).stdout(into("out")?).stderr(into("err")?);
        let status = command.status().context("cannot start tiercel")?;
        ensure!(status.success(), "tiercel {} ended with {status}{}", words[0], self.shown());
        Ok(())
    }

    fn configuration(&self) -> PathBuf {
        self.scratch.join("config.toml")
    }

    fn plan(&self) -> PathBuf {
        self.scratch.join("run.plan")
    }
}

/// Where the profile of a program recorded with this configuration is kept, in [`KEPT`].
pub(super) fn profile_name(command: &[String], config: &str) -> String {
    let program = command.first().and_then(|path| Path::new(path).file_name());
    let program = program.unwrap_or_default().to_string_lossy();
    let determines = fingerprint(format!("{command:?} {config}").as_bytes());
    format!("{program}-{}.profile", &determines[..NAME_DIGITS])
}

/// What the plan expected, and what it rests on.
fn planned(plan: &str) -> Result<serde_json::Value> {
    let plan: serde_json::Value = serde_json::from_str(plan).context("the plan is no JSON")?;
    let machine = &plan["machine"];
    Ok(serde_json::json!({
        "expected": plan["expected"],
        "held_back_bytes": machine["held_back_bytes"],
        "moves": machine["moves"],
    }))
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Most bytes that lived and accesses of each site that had any, those with most first.
fn sites(rows: &serde_json::Value) -> serde_json::Value {
    let number = |row: &serde_json::Value, name: &str| row["used"][name].as_u64().unwrap_or(0);
    let site = |row| (number(row, "reads") + number(row, "writes"), number(row, "peak_bytes"));
    let mut sites: Vec<(u64, u64)> = rows.as_array().into_iter().flatten().map(site).collect();
    sites.retain(|(accesses, _)| *accesses > 0);
    sites.sort_by_key(|(accesses, _)| std::cmp::Reverse(*accesses));
    sites.truncate(SITES_MAX);
    sites.into_iter().map(|(accesses, bytes)| serde_json::json!([bytes, accesses])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_kept_with_what_it_expected() {
        let kept = planned(
            r#"{"machine":{"moves":[1],"held_back_bytes":7},"expected":{"gap":2},"sites":[]}"#,
        );
        let whole = serde_json::json!({"expected":{"gap":2},"held_back_bytes":7,"moves":[1]});
        assert_eq!(kept.unwrap(), whole);
        assert!(planned("{").is_err());
    }

    #[test]
    fn sites_are_kept_by_their_accesses() {
        let rows = serde_json::json!([
            { "used": { "reads": 1, "writes": 1, "peak_bytes": 7 } },
            { "used": { "reads": 0, "writes": 0, "peak_bytes": 9 } },
            { "used": { "reads": 5, "writes": 0, "peak_bytes": 8 } },
        ]);
        assert_eq!(sites(&rows), serde_json::json!([[8, 5], [7, 2]]));
        assert_eq!(sites(&serde_json::Value::Null), serde_json::json!([]));
    }
}
