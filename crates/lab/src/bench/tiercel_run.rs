//! Runs under Tiercel: its configuration and command line before a run, its summary afterwards. In:
//! [`Spec`]s. Out: the words before the program, figures of the summary. Before a planned run it
//! makes a profile, once per boot, and a plan; both are stored. Knows nothing of baselines.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::agent::Agent;
use super::run_result::{Method, Spec};
use super::runs::fingerprint;

/// The folder whose files the host receives when the guest ends.
const OUT: &str = "out";

/// Hexadecimal digits of the fingerprint in the name of a profile: 32 bits. With 100 profiles of a
/// program, two have the same name with a probability of 100^2 / 2^33, about one in a million.
const NAME_DIGITS: usize = 8;

impl Agent {
    /// Writes the files that a run needs before it begins: its configuration, and its plan.
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
        let kept = self.root.join(OUT).join(format!("{}.plan", spec.key));
        fs::copy(self.plan(), kept).context("cannot store the plan")?;
        Ok(())
    }

    /// The words before the program.
    pub(super) fn tiercel_words(&self, spec: &Spec) -> Result<Vec<String>> {
        let mut words = ["tiercel", "run", "--json"].map(str::to_owned).to_vec();
        words.extend(["--config".to_owned(), path_text(&self.configuration())]);
        words.extend(["--output".to_owned(), path_text(&self.scratch.join("summary.json"))]);
        if let Some(bytes) = spec.fast_bytes {
            words.extend(["--fast".to_owned(), format!("{bytes}B")]);
        }
        if let Method::Planned { .. } = spec.method {
            words.extend(["--plan".to_owned(), path_text(&self.plan())]);
            if !spec.run.iter().any(|word| word == "--adapt") {
                // No decision would use samples.
                words.extend(["--sampler", "none"].map(str::to_owned));
            }
        }
        words.extend((spec.learned == 0).then(|| "--no-learn".to_owned()));
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
            .context("Tiercel wrote no summary")?;
        let mut value: serde_json::Value =
            serde_json::from_str(&text).context("Tiercel's summary is not JSON")?;
        let mut summary = figures(&mut value);
        if let Method::Planned { recorded, .. } = &spec.method {
            summary["planned"] = planned(&fs::read_to_string(self.plan()).context("the plan")?)?;
            summary["planned"]["profile"] = profile_name(&spec.command, recorded).into();
        }
        Ok(summary)
    }

    /// The program's profile, which is recorded unless this boot already has it.
    fn profile(&self, spec: &Spec, config: &str) -> Result<PathBuf> {
        let profile = self.root.join(OUT).join(profile_name(&spec.command, config));
        if profile.exists() {
            return Ok(profile);
        }
        fs::create_dir_all(self.root.join(OUT)).context("cannot create the folder of profiles")?;
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
        let into = |name: &str| {
            File::create(self.scratch.join(name)).context("cannot create the files for its output")
        };
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

/// The name, in [`OUT`], of the profile of a program that was recorded with this configuration.
pub(super) fn profile_name(command: &[String], config: &str) -> String {
    let program = command.first().and_then(|path| Path::new(path).file_name());
    let program = program.unwrap_or_default().to_string_lossy();
    let determines = fingerprint(format!("{command:?} {config}").as_bytes());
    format!("{program}-{}.profile", &determines[..NAME_DIGITS])
}

/// What a summary says: of objects, or of OS pages where a run is by them.
fn figures(value: &mut serde_json::Value) -> serde_json::Value {
    let mut summary = value["summary"].take();
    if !value["pages"].is_null() {
        summary["pages"] = value["pages"].take();
    }
    summary["remarks"] = value["remarks"].take();
    summary
}

/// The plan's prediction, and the costs that it assumes.
fn planned(plan: &str) -> Result<serde_json::Value> {
    let plan: serde_json::Value = serde_json::from_str(plan).context("the plan is not JSON")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_objects_or_of_os_pages() {
        let of = |text: &str| figures(&mut serde_json::from_str(text).unwrap());
        let objects = of(r#"{"summary":{"ticks":3},"remarks":["r"]}"#);
        assert_eq!(objects, serde_json::json!({"ticks": 3, "remarks": ["r"]}));
        let pages = of(r#"{"pages":{"windows":4},"remarks":[],"exit_status":0}"#);
        assert_eq!(pages, serde_json::json!({"pages": {"windows": 4}, "remarks": []}));
    }

    #[test]
    fn a_plan_is_stored_with_its_prediction() {
        let kept = planned(
            r#"{"machine":{"moves":[1],"held_back_bytes":7},"expected":{"gap":2},"sites":[]}"#,
        );
        let whole = serde_json::json!({"expected":{"gap":2},"held_back_bytes":7,"moves":[1]});
        assert_eq!(kept.unwrap(), whole);
        assert!(planned("{").is_err());
    }
}
