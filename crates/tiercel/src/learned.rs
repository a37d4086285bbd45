//! `tiercel learned`: what runs of programs learned for their next runs.
//! In: [`LearnedArgs`]. Out: tables, JSON. Knows nothing of how it is learned or used.

use crate::learn::{age, folder, history, identity, now_s};
use crate::learned_args::{LearnedArgs, LearnedVerb};
use crate::privilege::symbol_reader;
use crate::show::short_count;
use crate::table::{Align, Table};
use crate::terminal::{printable, say, say_json};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::Path;
use tiercel_learned::{Entry, Identity, Known, SiteFigures, SiteUse, Store};
use tiercel_machine::number::saturating_u64;
use tiercel_machine::short_bytes;
use tiercel_symbolize::{SiteFrame, Symbols, hex};

/// `tiercel learned`.
pub fn learned(args: &LearnedArgs) -> Result<()> {
    match &args.verb {
        LearnedVerb::List { json } => list(*json),
        LearnedVerb::Show { program, rows, json } => show(program, *rows, *json),
        LearnedVerb::Forget { program, json, .. } => forget(program.as_deref(), *json),
    }
}

/// A file of the folder, and what it says; or why it is not used.
type Read = (Entry, Result<Known, String>);

/// All files, the latest first; none where there is no folder.
fn read_all(path: &Path) -> Result<(Option<Store>, Vec<Read>)> {
    let Some(store) = Store::open(path)? else { return Ok((None, Vec::new())) };
    let entries = store.entries()?;
    let read = |entry: Entry| {
        let known = match store.read(&entry.identity) {
            Ok(Some(known)) => Ok(known),
            Ok(None) => Err("it was forgotten meanwhile".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        (entry, known)
    };
    let all = entries.into_iter().map(read).collect();
    Ok((Some(store), all))
}

fn usual() -> Result<std::path::PathBuf> {
    folder().context("neither XDG_DATA_HOME nor HOME is an absolute path; set one of them")
}

fn list(as_json: bool) -> Result<()> {
    let path = usual()?;
    let (_, all) = read_all(&path)?;
    if as_json {
        let programs: Vec<Value> = all.iter().map(row_json).collect();
        let folder = path.to_string_lossy();
        return say_json("learned-list", &json!({ "folder": folder, "programs": programs }));
    }
    if all.is_empty() {
        return say(&format!("nothing is known of any program in {}\n", printed(&path)));
    }
    let mut table = Table::new(&[
        ("program", Align::Left),
        ("runs", Align::Right),
        ("last", Align::Right),
        ("sites", Align::Right),
        ("samples", Align::Right),
        ("peak", Align::Right),
        ("file", Align::Right),
        ("build", Align::Left),
    ]);
    let now_s = now_s();
    all.iter().for_each(|read| table.row(row(read, now_s)));
    say(&table.text())
}

fn row((entry, known): &Read, now_s: u64) -> Vec<String> {
    let (file, build) = (short_bytes(entry.bytes), entry.identity.to_string());
    let none = || "-".to_owned();
    match known {
        Ok(known) => vec![
            name_of(known).to_owned(),
            known.runs.to_string(),
            format!("{} ago", age(now_s.saturating_sub(known.updated_s))),
            known.sites.len().to_string(),
            short_count(saturating_u64(known.samples())),
            short_bytes(known.peak_bytes),
            file,
            build,
        ],
        Err(problem) => {
            vec![
                format!("not used: {problem}"),
                none(),
                none(),
                none(),
                none(),
                none(),
                file,
                build,
            ]
        }
    }
}

fn row_json((entry, known): &Read) -> Value {
    let known_or = |of: &dyn Fn(&Known) -> Value| known.as_ref().map_or(Value::Null, of);
    json!({
        "identity": entry.identity,
        "bytes": entry.bytes,
        "program": known_or(&|known| known.program.as_str().into()),
        "runs": known_or(&|known| known.runs.into()),
        "updated_s": known_or(&|known| known.updated_s.into()),
        "elapsed_s": known_or(&|known| known.elapsed_s.into()),
        "peak_bytes": known_or(&|known| known.peak_bytes.into()),
        "sites": known_or(&|known| known.sites.len().into()),
        "samples": known_or(&|known| known.samples().into()),
        "problem": known.as_ref().err(),
    })
}

/// The name that people call it by.
fn name_of(known: &Known) -> &str {
    Path::new(&known.program).file_name().and_then(|name| name.to_str()).unwrap_or(&known.program)
}

fn printed(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Whether this is meant: a build, a file of that build, or a name or path of a program.
fn is_meant((entry, known): &Read, program: &str, file: Option<&Identity>) -> bool {
    let named = |known: &Known| known.program == program || name_of(known) == program;
    let is_build = program.len() >= 8 && entry.identity.as_str().starts_with(program);
    is_build || file == Some(&entry.identity) || known.as_ref().is_ok_and(named)
}

/// Those that are meant, the latest first; one at least.
fn meant(path: &Path, program: &str) -> Result<(Store, Vec<Read>)> {
    let (store, all) = read_all(path)?;
    let file = identity(Path::new(program));
    let all: Vec<Read> =
        all.into_iter().filter(|read| is_meant(read, program, file.as_ref())).collect();
    match store {
        Some(store) if !all.is_empty() => Ok((store, all)),
        _ => bail!(
            "nothing is known of {}; `tiercel learned list` lists what is",
            printable(program)
        ),
    }
}

fn show(program: &str, rows: usize, as_json: bool) -> Result<()> {
    let (_, all) = meant(&usual()?, program)?;
    let mut readable = all.into_iter().map(|(_, known)| known);
    let known = readable.next().context("no file")?.map_err(anyhow::Error::msg)?;
    let mut symbols = Symbols::new(&symbol_reader());
    if as_json {
        return say_json("learned", &shown_json(&known, &mut symbols)?);
    }
    say(&shown(&known, rows, &mut symbols))
}

fn shown_json(known: &Known, symbols: &mut Symbols) -> Result<Value> {
    let mut value = serde_json::to_value(known)?;
    let rows = value["sites"].as_array_mut().into_iter().flatten();
    for (row, site) in rows.zip(&known.sites) {
        row["label"] = label(site, symbols).into();
        row["lifetime_s"] = site.lifetime_s().into();
        row["uncertainty"] = site.uncertainty().into();
    }
    Ok(value)
}

fn shown(known: &Known, rows: usize, symbols: &mut Symbols) -> String {
    let mut table = Table::new(&[
        ("value", Align::Right),
        ("+-", Align::Right),
        ("per MiB", Align::Right),
        ("peak", Align::Right),
        ("births", Align::Right),
        ("lifetime", Align::Right),
        ("hot parts", Align::Left),
        ("site", Align::Left),
    ]);
    let all_ns = known.value_ns();
    let sites = known.sites.iter().take(rows);
    sites.for_each(|site| table.row(site_row(site, all_ns, symbols)));
    let more = known.sites.len().saturating_sub(rows);
    let more =
        if more > 0 { format!("... and {more} more; --rows shows them\n") } else { String::new() };
    format!(
        "{}: {}; {} samples, peak {}\n\
         value: what fast memory saves over slow; per MiB: milliseconds a second\n\n{}{more}",
        printable(&known.program),
        history(known.runs, known.updated_s, now_s()),
        short_count(saturating_u64(known.samples())),
        short_bytes(known.peak_bytes),
        table.text(),
    )
}

fn site_row(site: &SiteFigures, all_ns: f64, symbols: &mut Symbols) -> Vec<String> {
    let share = if all_ns > 0.0 { site.value_ns / all_ns } else { 0.0 };
    let mib_s = site.live_byte_s / f64::from(1 << 20);
    let per_mib =
        if mib_s > 0.0 { format!("{:.3}", site.value_ns / 1e6 / mib_s) } else { "-".into() };
    let lifetime_s = site.lifetime_s();
    vec![
        format!("{:.1}%", share * 100.0),
        format!("{:.0}%", site.uncertainty() * 100.0),
        per_mib,
        short_bytes(site.peak_bytes),
        short_count(saturating_u64(site.births.round())),
        if lifetime_s > 0.0 { format!("{lifetime_s:.3}s") } else { "-".into() },
        parts(site),
        label(site, symbols),
    ]
}

/// A digit for each part of large objects, tenths of the most valuable one: `93000001`.
fn parts(site: &SiteFigures) -> String {
    let most = site.part_value_ns.iter().copied().fold(0.0, f64::max);
    let digit = |ns: &f64| (saturating_u64(ns / most * 9.0)).to_string();
    if most > 0.0 { site.part_value_ns.iter().map(digit).collect() } else { "-".to_owned() }
}

fn label(site: &SiteFigures, symbols: &mut Symbols) -> String {
    if !site.name.is_empty() {
        return printable(&site.name);
    }
    let frame = |frame: &tiercel_learned::LearnedFrame| SiteFrame {
        path: Path::new(&frame.module).into(),
        build_id: hex::bytes(&frame.build_id).unwrap_or_default(),
        addr: frame.address,
    };
    let frames: Vec<SiteFrame> = site.frames.iter().map(frame).collect();
    match (symbols.owning_frame(&frames), site.kind) {
        (Some(named), _) => printable(&named.short()),
        (None, SiteUse::Mixed) => "small objects".to_owned(),
        (None, _) => "unknown site".to_owned(),
    }
}

fn forget(program: Option<&str>, as_json: bool) -> Result<()> {
    let path = usual()?;
    let (store, all) = match program {
        Some(program) => meant(&path, program).map(|(store, all)| (Some(store), all))?,
        None => read_all(&path)?,
    };
    let mut forgotten = Vec::new();
    for (entry, _) in all {
        if let Some(store) = &store
            && store.forget(&entry.identity)?
        {
            forgotten.push(entry.identity);
        }
    }
    if as_json {
        return say_json("learned-forget", &json!({ "forgotten": forgotten }));
    }
    let count = crate::figures::plural(forgotten.len() as u64, "build was", "builds were");
    say(&format!("{count} forgotten\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_learned::PARTS;

    #[test]
    fn parts_are_digits_of_the_most_valuable_one() {
        let mut site = SiteFigures::default();
        assert_eq!(parts(&site), "-");
        site.part_value_ns = vec![10.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        assert_eq!(parts(&site), "94000000");
        assert_eq!(site.part_value_ns.len(), PARTS);
    }

    #[test]
    fn texts_of_files_paint_no_screen() {
        let mut symbols = Symbols::new(&tiercel_symbolize::Reader::InProcess);
        let site = SiteFigures { name: "a\x1b[2J".into(), ..SiteFigures::default() };
        assert_eq!(label(&site, &mut symbols), "a?[2J");
        assert_eq!(label(&SiteFigures::default(), &mut symbols), "unknown site");
    }
}
