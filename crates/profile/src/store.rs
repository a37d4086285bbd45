//! A profile as a folder: written completely or not at all, read only if all invariants hold. In: a
//! [`Profile`] and a path. Out: the folder; or the profile in one. Knows nothing of a profile's
//! meaning, or of tables' columns.
//!
//! ```text
//!   app.profile/  manifest.json   format, version, runs, slots, what is coarser; size, rows and
//!                                 checksum of every other file; a checksum of itself
//!                 machine.toml    as `--machine` takes it
//!                 *.parquet       one per table
//! ```

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tiercel_machine::Machine;

use crate::check::check;
use crate::export::TABLES;
use crate::profile::{Coarsening, Profile, Run};
use crate::table::{self, TableRow, Texts};
use crate::tables;

/// Version of the folder's contents. Others are refused.
pub const FORMAT_VERSION: u32 = 6;

/// First word of every manifest.
const FORMAT: &str = "tiercel-profile";

const MANIFEST: &str = "manifest.json";
const MACHINE: &str = "machine.toml";

/// Largest manifest that is read, bytes: a run takes a few hundred, its arguments up to 2 MiB.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Largest table that is read, bytes.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Why a profile was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The system refused.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Not written by Tiercel.
    #[error("{path} is not a profile: {what}; create one with `tiercel record -- PROGRAM`")]
    NotAProfile {
        /// What was opened.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// Written by a Tiercel with another format.
    #[error(
        "{path}: profile version {found}; this build reads version {FORMAT_VERSION}: record again"
    )]
    UnsupportedVersion {
        /// The profile.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Changed since it was written, or never valid.
    #[error("{path}: {what}; the profile is damaged; record again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        what: String,
    },
    /// A profile in memory that violates an invariant: a defect of its producer.
    #[error("the profile is inconsistent ({0}) and was not written")]
    Inconsistent(String),
    /// The path exists and is something else.
    #[error("{0} exists and is not a profile; it is not overwritten. Choose another path with -o")]
    Occupied(PathBuf),
}

/// The beginning of every version's manifest.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: String,
    version: u32,
    /// Checksum of the rest in compact form, with 0 here.
    crc32: u32,
    /// Version of the Tiercel that wrote it.
    written_by: String,
    slot_ns: u64,
    runs: Vec<Run>,
    coarsening: Coarsening,
    files: BTreeMap<String, FileInfo>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileInfo {
    /// Rows of the table, for readers.
    rows: u64,
    bytes: u64,
    crc32: u32,
}

/// Writes a profile to `folder`, replacing an earlier profile there; anything else is refused.
///
/// # Errors
/// [`ProfileError`]. The contents of `folder` are then unchanged.
pub fn write(profile: &Profile, folder: &Path) -> Result<(), ProfileError> {
    check(profile).map_err(ProfileError::Inconsistent)?;
    let files = files(profile)?;
    vacant(folder)?;
    let parent = parent_of(folder);
    let fresh = temporary(parent)?;
    for (name, bytes) in &files {
        let path = fresh.path().join(name);
        write_file(&path, bytes).map_err(io("write", &path))?;
    }
    // The old folder is renamed, and renamed back if the new one cannot replace it.
    let aside = temporary(parent)?;
    let old = aside.path().join("old");
    let replaces = folder.exists();
    if replaces {
        std::fs::rename(folder, &old).map_err(io("replace", folder))?;
    }
    let fresh = fresh.keep();
    std::fs::rename(&fresh, folder).map_err(|error| {
        let _ = std::fs::remove_dir_all(&fresh);
        if replaces {
            let _ = std::fs::rename(&old, folder);
        }
        io("write", folder)(error)
    })
}

/// Whether a profile can be written to `folder`: the path is free or has a profile of any version,
/// and folders can be created next to it.
///
/// # Errors
/// [`ProfileError::Occupied`] if the path is something else, [`ProfileError::Io`] if the system
/// refuses.
pub fn vacant(folder: &Path) -> Result<(), ProfileError> {
    match std::fs::symlink_metadata(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(io("look at", folder)(error)),
        Ok(meta) if meta.is_dir() && head(folder).is_ok() => {}
        Ok(_) => return Err(ProfileError::Occupied(folder.to_owned())),
    }
    let parent = parent_of(folder);
    // Below, the error would be about a temporary name in it.
    std::fs::metadata(parent).map_err(io("write in", parent))?;
    temporary(parent).map(drop)
}

/// Reads the profile in `folder`.
///
/// # Errors
/// [`ProfileError`]; an invalid folder is refused as a whole.
pub fn read(folder: &Path) -> Result<Profile, ProfileError> {
    let (head, text) = head(folder)?;
    if head.version != FORMAT_VERSION {
        return Err(ProfileError::UnsupportedVersion {
            path: folder.to_owned(),
            found: head.version,
        });
    }
    let damaged =
        |name: &str, what: String| ProfileError::Damaged { path: folder.join(name), what };
    let manifest = parse_manifest(&text).map_err(|what| damaged(MANIFEST, what))?;
    let load = |name: &str| load(folder, name, manifest.files.get(name));
    let machine = load(MACHINE)?;
    let mut tables = BTreeMap::new();
    for name in table_names() {
        tables.insert(name.clone(), load(&name)?);
    }
    let profile = profile(manifest, &machine, &tables);
    let profile = profile.map_err(|(name, what)| damaged(&name, what))?;
    check(&profile).map_err(|what| damaged("", what))?;
    Ok(profile)
}

/// The files that [`write`] writes, by name, for [`read_forged`].
#[cfg(feature = "forge")]
pub fn forge(profile: &Profile) -> BTreeMap<String, Vec<u8>> {
    check(profile).expect("a profile that holds");
    files(profile).expect("a profile that can be written")
}

/// The profile in files, ignoring their checksums, which no fuzzer could guess.
///
/// # Errors
/// As with [`read`]: the file, and what is wrong in it.
#[cfg(feature = "forge")]
pub fn read_forged(files: BTreeMap<String, Vec<u8>>) -> Result<Profile, (String, String)> {
    let wrong = |what: String| (MANIFEST.to_owned(), what);
    let manifest = serde_json::from_slice(&files[MANIFEST]).map_err(|e| wrong(e.to_string()))?;
    let machine = files[MACHINE].clone().into();
    let files = files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
    let profile = profile(manifest, &machine, &files)?;
    check(&profile).map_err(wrong)?;
    Ok(profile)
}

/// The tables' files.
fn table_names() -> [String; TABLES.len()] {
    TABLES.map(file_name)
}

fn file_name(table: &str) -> String {
    format!("{table}.parquet")
}

/// All files of a profile, by name.
fn files(profile: &Profile) -> Result<BTreeMap<String, Vec<u8>>, ProfileError> {
    let machine = profile.machine.to_toml();
    if Machine::from_toml(&machine).ok().as_ref() != Some(&profile.machine) {
        return Err(ProfileError::Inconsistent("its machine cannot be described".to_owned()));
    }
    let mut files = BTreeMap::from([(MACHINE.to_owned(), machine.into_bytes())]);
    let mut infos = BTreeMap::new();
    infos.insert(MACHINE.to_owned(), info(0, &files[MACHINE]));
    let mut add = |(name, rows, bytes): Written| {
        infos.insert(name.clone(), info(rows, &bytes));
        files.insert(name, bytes);
    };
    add(table(&profile.processes)?);
    add(table(&tables::thread_rows(&profile.processes))?);
    add(table(&tables::site_rows(&profile.sites))?);
    add(table(&tables::frame_rows(&profile.sites))?);
    add(table(&profile.phases)?);
    add(table(&profile.objects)?);
    add(table(&profile.accesses)?);
    add(table(&profile.access_sites)?);
    let mut manifest = Manifest {
        format: FORMAT.to_owned(),
        version: FORMAT_VERSION,
        crc32: 0,
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        slot_ns: profile.slot_ns,
        runs: profile.runs.clone(),
        coarsening: profile.coarsening.clone(),
        files: infos,
    };
    manifest.crc32 = manifest_crc32(&manifest);
    let mut text = serde_json::to_vec_pretty(&manifest).expect("plain data serialises");
    text.push(b'\n');
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        let what = format!("a manifest of {} bytes", text.len());
        return Err(ProfileError::Inconsistent(what));
    }
    files.insert(MANIFEST.to_owned(), text);
    Ok(files)
}

type Written = (String, usize, Vec<u8>);

fn table<R: TableRow>(rows: &[R]) -> Result<Written, ProfileError> {
    let bytes = table::write(rows);
    let bytes = bytes.map_err(|error| ProfileError::Inconsistent(error.to_string()))?;
    Ok((file_name(R::NAME), rows.len(), bytes))
}

fn info(rows: usize, bytes: &[u8]) -> FileInfo {
    FileInfo { rows: rows as u64, bytes: bytes.len() as u64, crc32: crc32fast::hash(bytes) }
}

fn manifest_crc32(manifest: &Manifest) -> u32 {
    crc32fast::hash(&serde_json::to_vec(manifest).expect("plain data serialises"))
}

fn parse_manifest(text: &[u8]) -> Result<Manifest, String> {
    let mut manifest: Manifest = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let said = std::mem::take(&mut manifest.crc32);
    if manifest_crc32(&manifest) != said {
        return Err("its checksum does not match".to_owned());
    }
    Ok(manifest)
}

/// The beginning that all versions share, and the manifest's text.
fn head(folder: &Path) -> Result<(Head, Vec<u8>), ProfileError> {
    let no = |what: String| ProfileError::NotAProfile { path: folder.to_owned(), what };
    let path = folder.join(MANIFEST);
    let text = match read_file(&path, MANIFEST_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if !folder.exists() => return Err(io("read", folder)(error)),
        Err(error) => return Err(no(format!("{MANIFEST}: {error}"))),
    };
    let head: Head =
        serde_json::from_slice(&text).map_err(|error| no(format!("{MANIFEST}: {error}")))?;
    if head.format != FORMAT {
        return Err(no(format!("{MANIFEST} says it is a {:?}", head.format)));
    }
    Ok((head, text))
}

/// A file as the manifest describes it.
fn load(folder: &Path, name: &str, info: Option<&FileInfo>) -> Result<Bytes, ProfileError> {
    let path = folder.join(name);
    let damaged = |what: &str| ProfileError::Damaged { path: path.clone(), what: what.to_owned() };
    let info = info.ok_or_else(|| damaged("the manifest does not list it"))?;
    let bytes = read_file(&path, FILE_BYTES_MAX).map_err(|error| damaged(&error.to_string()))?;
    if bytes.len() as u64 != info.bytes {
        let what = format!("{} bytes, and {} were written", bytes.len(), info.bytes);
        return Err(damaged(&what));
    }
    if crc32fast::hash(&bytes) != info.crc32 {
        return Err(damaged("its checksum does not match"));
    }
    Ok(bytes.into())
}

/// The profile in checked files; the error is the name of the file, and what is wrong in it.
fn profile(
    manifest: Manifest,
    machine: &Bytes,
    tables: &BTreeMap<String, Bytes>,
) -> Result<Profile, (String, String)> {
    let mut texts = Texts::default();
    let machine = std::str::from_utf8(machine).map_err(|error| error.to_string());
    let machine = machine.and_then(|text| Machine::from_toml(text).map_err(|e| e.to_string()));
    let mut profile = Profile {
        machine: machine.map_err(|what| (MACHINE.to_owned(), what))?,
        slot_ns: manifest.slot_ns,
        runs: manifest.runs,
        coarsening: manifest.coarsening,
        processes: rows(tables, &mut texts)?,
        phases: rows(tables, &mut texts)?,
        objects: rows(tables, &mut texts)?,
        accesses: rows(tables, &mut texts)?,
        access_sites: rows(tables, &mut texts)?,
        sites: Vec::new(),
    };
    let threads = rows(tables, &mut texts)?;
    tables::set_threads(&mut profile.processes, threads)
        .map_err(|what| (file_name("threads"), what))?;
    let frames = rows(tables, &mut texts)?;
    profile.sites = tables::sites(rows(tables, &mut texts)?, frames)
        .map_err(|what| (file_name("frames"), what))?;
    Ok(profile)
}

fn rows<R: TableRow>(
    tables: &BTreeMap<String, Bytes>,
    texts: &mut Texts,
) -> Result<Vec<R>, (String, String)> {
    let name = file_name(R::NAME);
    table::read(tables[&name].clone(), texts).map_err(|what| (name, what))
}

/// A regular file of bounded size.
fn read_file(path: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let wrong = |what: String| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    // Checked before opening, because opening a FIFO would wait for its other end.
    if !std::fs::metadata(path)?.is_file() {
        return wrong("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return wrong(format!("it is larger than {bytes_max} bytes"));
    }
    Ok(bytes)
}

fn write_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn parent_of(folder: &Path) -> &Path {
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn temporary(parent: &Path) -> Result<tempfile::TempDir, ProfileError> {
    use std::os::unix::fs::PermissionsExt;
    // With the user's umask, like any folder.
    let all = std::fs::Permissions::from_mode(0o777);
    let made =
        tempfile::Builder::new().prefix(".tiercel-profile-").permissions(all).tempdir_in(parent);
    made.map_err(io("write in", parent))
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ProfileError {
    let path = path.to_owned();
    move |error| ProfileError::Io { what, path, error }
}
