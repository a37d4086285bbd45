//! Layer direction. In: cargo's metadata. Out: edges between crates that the table does not have,
//! and dependencies a crate may not use. Knows nothing of the code behind an edge.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Problem, absence};
use crate::metadata::Package;

/// Which crates each crate may use, in data-flow order. Tests may use any crate above, to make
/// inputs. A new edge is a design decision: argue it in the commit and draw it in ARCHITECTURE.md.
const LAYERS: &[(&str, &[&str])] = &[
    ("bench", &[]),
    ("wire", &[]),
    ("machine", &[]),
    ("memsim", &["machine"]),
    ("ledger", &["wire", "machine"]),
    ("policy", &["ledger", "machine"]),
    ("planner", &["machine"]),
    ("symbolize", &[]),
    ("profile", &["wire", "machine", "ledger", "symbolize"]),
    ("plan", &["wire", "machine"]),
    ("learned", &["wire", "machine", "plan"]),
    ("advisor", &["wire", "machine", "planner", "profile", "plan"]),
    ("replay", &["wire", "machine", "ledger", "policy", "planner", "profile"]),
    ("sampler", &["wire", "machine"]),
    ("mover", &["ledger", "machine"]),
    ("pool", &["machine"]),
    ("broker", &["wire", "machine", "symbolize", "sampler", "mover"]),
    (
        "daemon",
        &[
            "wire",
            "machine",
            "ledger",
            "policy",
            "symbolize",
            "profile",
            "plan",
            "learned",
            "sampler",
            "mover",
            "pool",
            "broker",
        ],
    ),
    ("emulator", &["machine", "memsim", "wire"]),
    ("report", &[]),
    ("lab", &["machine", "report"]),
    (
        "tiercel",
        &[
            "wire",
            "machine",
            "ledger",
            "policy",
            "planner",
            "symbolize",
            "profile",
            "plan",
            "learned",
            "advisor",
            "replay",
            "sampler",
            "mover",
            "broker",
            "daemon",
            "report",
            "lab",
        ],
    ),
    ("xtask", &["bench", "machine", "report", "lab"]),
];

/// Packages from outside that only the named crates may use.
const RESERVED: &[(&[&str], &[&str])] = &[
    // What leaves as JSON leaves through the control socket or the terminal, between the lab and
    // its plugin, or as a profile, a plan, or what is learned.
    (
        &["serde_json"],
        &[
            "bench",
            "symbolize",
            "profile",
            "plan",
            "learned",
            "daemon",
            "emulator",
            "tiercel",
            "lab",
            "xtask",
        ],
    ),
    (&["parquet", "zstd"], &["profile"]),
    (&["highs"], &["planner"]),
    // Who has which privilege is decided in one place.
    (&["caps", "seccompiler", "postcard"], &["broker"]),
    (&["anyhow"], &["tiercel", "lab", "xtask"]),
    (
        &["libc", "rustix", "nix"],
        &[
            "bench",
            "wire",
            "sampler",
            "mover",
            "pool",
            "broker",
            "symbolize",
            "learned",
            "daemon",
            "tiercel",
            "lab",
            "xtask",
        ],
    ),
    (&["clap", "ratatui", "crossterm"], &["tiercel", "xtask"]),
];

pub fn check(packages: &[Package], root: &Path) -> Vec<Problem> {
    let ours: Vec<&Package> = packages.iter().filter(|one| one.source.is_none()).collect();
    let mut problems: Vec<Problem> =
        ours.iter().flat_map(|package| check_package(package, root)).collect();
    let names: Vec<&str> = ours.iter().map(|package| short(&package.name)).collect();
    problems.extend(tables().into_iter().filter(|name| !names.contains(name)).map(gone));
    problems
}

/// The crates that the tables here and in `absence` name.
fn tables() -> BTreeSet<&'static str> {
    let layers = LAYERS.iter().map(|(name, _)| *name);
    let used = LAYERS.iter().flat_map(|(_, used)| used.iter().copied());
    let reserved = RESERVED.iter().flat_map(|(_, may)| may.iter().copied());
    layers.chain(used).chain(reserved).chain(absence::crates()).collect()
}

fn gone(name: &str) -> Problem {
    let what = format!("a table of the tidy check names `{name}`, and there is no such crate");
    Problem { path: "xtask/src/tidy".into(), line: 0, what }
}

fn check_package(package: &Package, root: &Path) -> Vec<Problem> {
    let path = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
    let problem = |what: String| Problem { path: path.display().to_string(), line: 0, what };
    let name = short(&package.name);
    let place = |name: &str| LAYERS.iter().position(|(one, _)| *one == name);
    let Some(own_place) = place(name) else {
        return vec![problem(format!("`{name}` is not in the table of layers"))];
    };
    let (_, allowed) = LAYERS[own_place];
    let mut problems = Vec::new();
    for dependency in &package.dependencies {
        let used = short(&dependency.name);
        let is_ours = dependency.name.starts_with("tiercel");
        let shipped = dependency.kind.as_deref() != Some("dev");
        let is_above = place(used).is_some_and(|place| place < own_place);
        if is_ours && !allowed.contains(&used) && (shipped || !is_above) {
            problems.push(problem(format!("`{name}` may not use `{used}`")));
        }
        let reserved = RESERVED.iter().find(|(these, _)| these.contains(&used));
        if let Some((_, may)) = reserved.filter(|_| shipped && !is_ours)
            && !may.contains(&name)
        {
            problems.push(problem(format!("`{name}` may not use `{used}`: {may:?} may")));
        }
    }
    problems
}

fn short(name: &str) -> &str {
    name.strip_prefix("tiercel-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn whats(name: &str, used: &str, kind: Option<&str>) -> Vec<String> {
        let dependency = Dependency { name: used.into(), kind: kind.map(String::from) };
        let package = Package {
            name: name.into(),
            version: String::new(),
            license: None,
            source: None,
            manifest_path: "/top/crates/a/Cargo.toml".into(),
            dependencies: vec![dependency],
        };
        let problems = check_package(&package, Path::new("/top"));
        problems.into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn an_edge_upwards_is_reported() {
        assert_eq!(whats("tiercel-ledger", "tiercel-policy", None).len(), 1);
        assert_eq!(whats("tiercel-ledger", "tiercel-policy", Some("dev")).len(), 1);
        assert!(whats("tiercel-policy", "tiercel-ledger", None).is_empty());
        assert_eq!(whats("tiercel-policy", "tiercel-wire", None).len(), 1);
        assert!(whats("tiercel-policy", "tiercel-wire", Some("dev")).is_empty());
    }

    #[test]
    fn a_reserved_package_is_reported() {
        assert_eq!(whats("tiercel-ledger", "libc", None).len(), 1);
        assert!(whats("tiercel-ledger", "libc", Some("dev")).is_empty());
        assert!(whats("tiercel-mover", "libc", None).is_empty());
    }

    #[test]
    fn a_removed_crate_is_reported() {
        let problems = check(&[], Path::new("/top"));
        assert!(problems.iter().any(|problem| problem.what.contains("`ledger`")));
    }

    #[test]
    fn a_crate_without_a_layer_is_reported() {
        assert_eq!(whats("tiercel-extra", "serde", None).len(), 1);
    }
}
