//! A machine each of whose figures is 25% higher, and lower. In: the name of a machine of
//! lab/machines. Out: descriptions. Knows nothing of what is done with them.

use anyhow::{Context, Result};
use toml::Value;

use crate::exec;

/// How much a figure is changed: what section 6 of OAM's specification asks rankings to survive.
const TIMES: [f64; 2] = [0.75, 1.25];

/// A changed machine.
pub struct Variant {
    /// What is changed, as `pcm read_latency_ns x1.25`.
    pub what: String,
    /// Its description.
    pub text: String,
}

/// All machines that differ in one figure from this one; a figure of 0 stays.
pub fn variants(machine: &str) -> Result<Vec<Variant>> {
    let path = exec::root().join("lab/machines").join(format!("{machine}.toml"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    of_text(&text)
}

fn of_text(text: &str) -> Result<Vec<Variant>> {
    let plain: Value = toml::from_str(text)?;
    let mut variants = Vec::new();
    let nodes = plain["node"].as_array().context("no nodes")?;
    for (at, node) in nodes.iter().enumerate() {
        for table in ["figures", "energy"] {
            let figures = node.get(table).and_then(Value::as_table);
            for (key, value) in figures.into_iter().flatten() {
                let Some(value) = value.as_float().filter(|value| *value > 0.0) else { continue };
                let name = node["name"].as_str().unwrap_or_default();
                for times in TIMES {
                    let mut changed = plain.clone();
                    changed["node"][at][table][key.as_str()] = Value::Float(value * times);
                    let what = format!("{name} {key} x{times}");
                    variants.push(Variant { what, text: toml::to_string(&changed)? });
                }
            }
        }
    }
    Ok(variants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_changed_alone_and_both_ways() {
        let text = "[[node]]\nname = \"a\"\nfigures = { read_gb_s = 4.0 }\n\
                    [[node]]\nname = \"b\"\nenergy = { static_w = 0.0, read_pj_per_bit = 2.0 }\n";
        let all = of_text(text).expect("a machine");
        let what: Vec<&str> = all.iter().map(|variant| variant.what.as_str()).collect();
        let figures = ["a read_gb_s", "b read_pj_per_bit"];
        let want = figures.map(|figure| TIMES.map(|times| format!("{figure} x{times}")));
        assert_eq!(what, want.concat());
        let first: Value = toml::from_str(&all[0].text).expect("text of a machine");
        assert_eq!(first["node"][0]["figures"]["read_gb_s"].as_float(), Some(3.0));
        assert_eq!(first["node"][1]["energy"]["read_pj_per_bit"].as_float(), Some(2.0));
    }
}
