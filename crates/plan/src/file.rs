//! Plans as files: anything but a valid plan is refused; a file is written completely or not at
//! all.
//! In: a path. Out: a [`Plan`] that [`check_plan`] accepts, or what is wrong and what to do.
//! Knows nothing of what a plan means.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use tiercel_machine::NodeId;

use crate::check::check_plan;
use crate::model::{
    Expected, Plan, PlanOptions, PlannedMachine, PlannedModule, PlannedPhase, PlannedProgram,
    PlannedSite, Unplanned,
};

/// Version of the file's format.
pub const PLAN_VERSION: u32 = 3;
/// Longest plan that is read, bytes: 32768 sites with one placement and ten frames take half of it.
pub const PLAN_BYTES_MAX: u64 = 128 << 20;

/// Value of the first field of every plan.
const FORMAT: &str = "tiercel plan";

/// Why a plan was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum PlanFileError {
    /// The system refused an operation.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Not a plan.
    #[error("{path} is not a plan: {what}; create one with `tiercel plan PROFILE -o FILE`")]
    NotAPlan {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A plan of another version.
    #[error(
        "{path}: plan version {found}; this build reads version {PLAN_VERSION}: plan again from the \
         profile"
    )]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// A plan that was truncated, damaged or forged.
    #[error("{path}: {what}; the plan is damaged; plan again from the profile")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first thing that is wrong.
        what: String,
    },
    /// A plan in memory that may not be written: a defect of its producer.
    #[error("the plan is inconsistent ({0}) and was not written")]
    Inconsistent(String),
}

#[derive(Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u64>,
}

#[derive(Serialize)]
struct Written<'a> {
    format: &'a str,
    version: u32,
    #[serde(flatten)]
    plan: &'a Plan,
}

/// Reads a plan.
///
/// # Errors
/// As [`PlanFileError`] states, for anything but a complete and valid plan of this version.
pub fn read_plan(path: &Path) -> Result<Plan, PlanFileError> {
    let io = |what| move |error| PlanFileError::Io { what, path: path.to_owned(), error };
    // A FIFO or a device given as the path must not block us.
    let meta = std::fs::metadata(path).map_err(io("read the plan"))?;
    let no_plan = |what: &str| PlanFileError::NotAPlan { path: path.to_owned(), what: what.into() };
    if !meta.is_file() {
        return Err(no_plan("it is not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(io("open the plan"))?;
    let mut bytes = Vec::with_capacity(meta.len().min(PLAN_BYTES_MAX) as usize + 1);
    file.take(PLAN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io("read the plan"))?;
    parse(&bytes).map_err(|refusal| refusal.at(path))
}

/// Writes a plan, replacing an existing one.
///
/// # Errors
/// As [`PlanFileError`] states; then nothing was written.
pub fn write_plan(plan: &Plan, path: &Path) -> Result<(), PlanFileError> {
    let io = |what| move |error| PlanFileError::Io { what, path: path.to_owned(), error };
    let text = text(plan)?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut fresh = tempfile::NamedTempFile::new_in(folder).map_err(io("write the plan"))?;
    fresh.write_all(text.as_bytes()).map_err(io("write the plan"))?;
    let usual = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fresh.as_file().set_permissions(usual).map_err(io("set the mode of"))?;
    fresh.persist(path).map_err(|error| io("write the plan")(error.error))?;
    Ok(())
}

impl Plan {
    /// The file's text.
    ///
    /// # Errors
    /// For a plan that contradicts itself.
    pub fn to_json(&self) -> Result<String, PlanFileError> {
        text(self)
    }

    /// Reads the text of a file, called `name` in messages. Never panics, whatever the text.
    ///
    /// # Errors
    /// As [`read_plan`].
    pub fn from_json(bytes: &[u8], name: &Path) -> Result<Plan, PlanFileError> {
        parse(bytes).map_err(|refusal| refusal.at(name))
    }
}

fn text(plan: &Plan) -> Result<String, PlanFileError> {
    check_plan(plan).map_err(PlanFileError::Inconsistent)?;
    let written = Written { format: FORMAT, version: PLAN_VERSION, plan };
    let text = serde_json::to_string_pretty(&written);
    Ok(text.map_err(|error| PlanFileError::Inconsistent(error.to_string()))? + "\n")
}

enum Refusal {
    NotAPlan(String),
    UnsupportedVersion(u64),
    Damaged(String),
}

impl Refusal {
    fn at(self, path: &Path) -> PlanFileError {
        let path = path.to_owned();
        match self {
            Refusal::NotAPlan(what) => PlanFileError::NotAPlan { path, what },
            Refusal::UnsupportedVersion(found) => PlanFileError::UnsupportedVersion { path, found },
            Refusal::Damaged(what) => PlanFileError::Damaged { path, what },
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Plan, Refusal> {
    let no_plan = |what: &str| Err(Refusal::NotAPlan(what.to_owned()));
    if bytes.is_empty() {
        return no_plan("it is empty");
    }
    if bytes.len() as u64 > PLAN_BYTES_MAX {
        return no_plan("it exceeds the largest size of a plan");
    }
    let text =
        std::str::from_utf8(bytes).map_err(|_| Refusal::NotAPlan("it is not UTF-8 text".into()))?;
    let plan = body(text).map_err(|error| refusal(text, &error))?;
    check_plan(&plan).map_err(Refusal::Damaged)?;
    Ok(plan)
}

/// Why a text is not a complete plan of this version, given the `error` of the parser.
fn refusal(text: &str, error: &serde_json::Error) -> Refusal {
    // The head of a truncated plan is still there: that is a damaged plan and nothing else.
    let begins = text.trim_start().starts_with('{') && text.contains(FORMAT);
    let Ok(head) = serde_json::from_str::<Head>(text) else {
        return match begins {
            true => Refusal::Damaged(error.to_string()),
            false => Refusal::NotAPlan("it is not the JSON of a plan".to_owned()),
        };
    };
    if head.format.as_deref() != Some(FORMAT) {
        return Refusal::NotAPlan("its `format` field does not identify a plan".to_owned());
    }
    match head.version {
        Some(version) if version == u64::from(PLAN_VERSION) => Refusal::Damaged(error.to_string()),
        Some(version) => Refusal::UnsupportedVersion(version),
        None => Refusal::Damaged("it has no version".to_owned()),
    }
}

/// A complete file; unknown fields are refused, with line and column.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    #[serde(rename = "format", deserialize_with = "our_format")]
    _format: (),
    #[serde(rename = "version", deserialize_with = "our_version")]
    _version: (),
    program: PlannedProgram,
    machine: PlannedMachine,
    options: PlanOptions,
    expected: Expected,
    unplanned: Unplanned,
    #[serde(default)]
    small_objects: Option<NodeId>,
    #[serde(default)]
    phases: Vec<PlannedPhase>,
    modules: Vec<PlannedModule>,
    sites: Vec<PlannedSite>,
}

fn our_format<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    let is_ours = String::deserialize(from)? == FORMAT;
    is_ours.then_some(()).ok_or_else(|| D::Error::custom("another format"))
}

fn our_version<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    let is_ours = u32::deserialize(from)? == PLAN_VERSION;
    is_ours.then_some(()).ok_or_else(|| D::Error::custom("another version"))
}

fn body(text: &str) -> Result<Plan, serde_json::Error> {
    let Whole {
        program,
        machine,
        options,
        expected,
        unplanned,
        small_objects,
        phases,
        modules,
        sites,
        ..
    } = serde_json::from_str(text)?;
    Ok(Plan {
        program,
        machine,
        options,
        expected,
        unplanned,
        small_objects,
        phases,
        modules,
        sites,
    })
}
