//! What the user reads. In: text. Out: standard output and standard error, where control characters
//! of foreign names do no harm. Knows nothing of what the text means.
//!
//! `println!` and `eprintln!` panic when a stream is closed or its disk is full. That would replace
//! the hosted program's exit status, so nothing in this crate uses them.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Writes to standard output. A reader that closes the pipe early (`| head`) is not an error.
pub fn say(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes a value as one line of JSON, of this [format](format_name).
pub fn say_json(format: &str, value: &impl Serialize) -> Result<()> {
    say(&json_of(format, value)?)
}

/// An object as one line of JSON, with its format in it.
pub fn json_of(format: &str, value: &impl Serialize) -> serde_json::Result<String> {
    let mut value = serde_json::to_value(value)?;
    write_hashes_as_text(&mut value);
    let fields = value.as_object_mut().expect("what the command prints as JSON is an object");
    fields.insert("format".to_owned(), format_name(format).into());
    json_line(&value)
}

/// Hashes as 16 hexadecimal digits, as in plans: the numbers of most JSON readers have 53 bits.
fn write_hashes_as_text(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_u64().filter(|_| name == "hash") {
                    Some(hash) => *field = format!("{hash:016x}").into(),
                    None => write_hashes_as_text(field),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(write_hashes_as_text),
        _ => {}
    }
}

/// `tiercel-whatif/1`: what an object of JSON has as `format`. docs/schema has a schema for each;
/// the number grows where a field changes its meaning or goes, not where one is added.
pub fn format_name(format: &str) -> String {
    format!("tiercel-{format}/1")
}

/// A value as one line of JSON, in which each character that a terminal obeys or does not show is
/// escaped: serde_json escapes those below a blank alone.
pub fn json_line(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    let mut line = String::with_capacity(text.len() + 1);
    // Outside of strings JSON has no such character.
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            let units = &mut [0; 2];
            c.encode_utf16(units).iter().for_each(|unit| line.push_str(&format!("\\u{unit:04x}")));
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    Ok(line)
}

/// Writes a line to standard error. There is nowhere to report that standard error cannot be
/// written.
pub fn note(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Each line with our name before it, to be distinguished from the program's; a blank line first.
pub fn prefixed(text: &str) -> String {
    let lines = std::iter::once("").chain(text.lines());
    lines.map(|line| format!("tiercel: {line}").trim_end().to_owned() + "\n").collect()
}

/// Writes why something failed to standard error.
pub fn complain(error: &anyhow::Error) {
    note(format_args!("tiercel: {}", reason(error)));
}

/// An error and its causes in one text. Many errors state their cause themselves: it is not
/// repeated.
pub fn reason(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let cause = cause.trim();
        if !text.contains(cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text.push_str(&format!("{colon}{cause}"));
        }
    }
    text
}

/// The text with `?` for each character that a terminal obeys or does not show. Names come from
/// programs, and could repaint the screen or reverse what follows them.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_invisible(c) { '?' } else { c }).collect()
}

/// Whether the character formats text without being seen: Unicode's general category Cf, and the
/// line and paragraph separators, as of Unicode 16, with whole blocks where only a few are
/// assigned.
fn is_invisible(c: char) -> bool {
    matches!(
        u32::from(c),
        0xad | 0x600..=0x605
            | 0x61c
            | 0x6dd
            | 0x70f
            | 0x180e
            | 0x200b..=0x200f
            | 0x2028..=0x202e
            | 0x2060..=0x206f
            | 0xfeff
            | 0xfff9..=0xfffb
            | 0xe0000..=0xe007f
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_reversed_text_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2J\u{202e}b\u{200b}\r\nc"), "a?[2J?b???c");
        assert_eq!(printable("größe 方法 é"), "größe 方法 é");
    }

    #[test]
    fn a_cause_is_stated_once() {
        let toml = || toml::from_str::<toml::Table>("a b\n").unwrap_err();
        let syntax = tiercel_daemon::ConfigError::Text(toml());
        let error = anyhow::Error::new(syntax).context("in the configuration x.toml");
        let expect = format!("in the configuration x.toml: {}", toml().to_string().trim());
        assert_eq!(reason(&error), expect);
        let missing = std::io::Error::from_raw_os_error(2);
        let error = anyhow::Error::new(missing).context("cannot read x");
        assert_eq!(reason(&error), "cannot read x: No such file or directory (os error 2)");
    }

    #[test]
    fn json_has_its_format_and_hashes_that_every_reader_keeps() {
        // As a double this number ends in 2.
        let sites = [serde_json::json!({ "hash": 9_007_199_254_740_993u64, "samples": 3 })];
        let line = json_of("top", &serde_json::json!({ "sites": sites })).unwrap();
        let expect =
            r#"{"format":"tiercel-top/1","sites":[{"hash":"0020000000000001","samples":3}]}"#;
        assert_eq!(line.trim_end(), expect);
    }

    #[test]
    fn json_names_what_a_terminal_obeys_by_number() {
        let value = "é\u{9b}2J\u{7f}\u{202e}\u{e0001}\n";
        let line = json_line(&value).unwrap();
        assert_eq!(line, "\"é\\u009b2J\\u007f\\u202e\\udb40\\udc01\\n\"\n");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), value);
    }
}
