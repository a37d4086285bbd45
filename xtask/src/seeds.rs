//! Kept inputs of a fuzzer, as text: names and bytes in hexadecimal digits. In: inputs as files.
//! Out: one file of text, and the inputs as files again. Knows nothing of what they are inputs of.
//!
//! ```text
//! # What crashed it once has a name; `learnt-` are the smallest inputs that cover what it covers.
//! expression-with-an-offset: dbe30a0b
//!     0102
//! learnt-0001: 00
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// How the names of inputs begin that another run may replace.
const LEARNT: &str = "learnt-";
/// Bytes of a file of kept inputs: a hundred fuzzers' would be as large as a large file of source.
const FILE_BYTES_MAX: usize = 100 << 10;
/// Bytes of a line: 96 digits.
const LINE_BYTES: usize = 48;

type Inputs = BTreeMap<String, Vec<u8>>;

/// Writes the kept inputs as files into a folder, and nothing else is left there.
pub fn unpack(file: &Path, folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder)?;
    std::fs::create_dir_all(folder)?;
    for (name, bytes) in read(file)? {
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// Keeps one more input, under its file's name.
pub fn add(file: &Path, input: &Path) -> Result<()> {
    let name = input.file_name().context("a file is needed")?.to_string_lossy().into_owned();
    let mut inputs = read(file)?;
    inputs.insert(name, std::fs::read(input)?);
    write(file, &inputs)
}

/// Replaces what was learnt before by the inputs of a folder, smallest first, as far as there is
/// room; how many are kept in all.
pub fn replace_learnt(file: &Path, folder: &Path) -> Result<usize> {
    let mut inputs = read(file)?;
    inputs.retain(|name, _| !name.starts_with(LEARNT));
    let mut learnt = Vec::new();
    for entry in folder.read_dir()? {
        learnt.push(std::fs::read(entry?.path())?);
    }
    learnt.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    for (number, bytes) in learnt.into_iter().enumerate() {
        inputs.insert(format!("{LEARNT}{number:04}"), bytes);
        if text(&inputs).len() > FILE_BYTES_MAX {
            inputs.pop_last();
            break;
        }
    }
    write(file, &inputs)?;
    Ok(inputs.len())
}

/// None where there is no file.
fn read(file: &Path) -> Result<Inputs> {
    match std::fs::read_to_string(file) {
        Ok(text) => parse(&text).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Inputs::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

fn write(file: &Path, inputs: &Inputs) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(file, text(inputs))?)
}

fn text(inputs: &Inputs) -> String {
    let mut text = String::new();
    for (name, bytes) in inputs {
        text.push_str(name);
        text.push(':');
        for (number, line) in bytes.chunks(LINE_BYTES).enumerate() {
            text.push_str(if number == 0 { " " } else { "\n    " });
            for byte in line {
                let _ = write!(text, "{byte:02x}");
            }
        }
        text.push('\n');
    }
    text
}

fn parse(text: &str) -> Result<Inputs> {
    let mut inputs = Inputs::new();
    let mut name = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut digits = line;
        if let Some((begun, rest)) = line.split_once(':') {
            (name, digits) = (begun.to_owned(), rest);
        } else if !line.starts_with(' ') || name.is_empty() {
            bail!("neither a name nor digits: {line:.40}");
        }
        let bytes = hex(digits.trim()).with_context(|| format!("{name}: not bytes"))?;
        inputs.entry(name.clone()).or_default().extend(bytes);
    }
    Ok(inputs)
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(|pair| if pair.len() == 2 { byte(pair) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_survive_as_text() {
        let inputs = Inputs::from([
            ("empty".into(), Vec::new()),
            ("learnt-0000".into(), vec![0, 255, 10]),
            ("long".into(), (0..=255).collect()),
        ]);
        let text = text(&inputs);
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
        assert_eq!(parse(&text).unwrap(), inputs);
        assert_eq!(parse(&format!("# a remark: of words\n{text}")).unwrap(), inputs);
    }

    #[test]
    fn what_is_no_input_is_refused() {
        for text in ["a: 0", "a: zz", "0102", "  01", "words"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn another_run_replaces_what_was_learnt_and_keeps_what_has_a_name() {
        let folder = std::env::temp_dir().join(format!("tiercel-seeds-{}", std::process::id()));
        let inputs = folder.join("inputs");
        std::fs::create_dir_all(&inputs).unwrap();
        let file = folder.join("seeds.txt");
        std::fs::write(&file, "crash: 01\nlearnt-0000: 02\nlearnt-0009: 03\n").unwrap();
        std::fs::write(inputs.join("x"), [7, 7]).unwrap();
        std::fs::write(inputs.join("huge"), vec![1; FILE_BYTES_MAX]).unwrap();
        assert_eq!(replace_learnt(&file, &inputs).unwrap(), 2);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "crash: 01\nlearnt-0000: 0707\n");
        unpack(&file, &inputs).unwrap();
        assert_eq!(inputs.read_dir().unwrap().count(), 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
