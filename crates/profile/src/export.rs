//! Tables of a profile as text: CSV (RFC 4180) or JSON. In: a [`Profile`], a table's name. Out:
//! text into a writer. Knows nothing of its destination.

use std::io::{self, Write};

use crate::profile::{Access, AccessSite, Object, Phase, Process, Profile};
use crate::table::{Cell, Kind, TableRow};
use crate::tables::{FrameRow, SiteRow, ThreadRow, frame_rows, site_rows, thread_rows};

/// Names of the tables.
pub const TABLES: [&str; 8] = [
    Process::NAME,
    ThreadRow::NAME,
    SiteRow::NAME,
    FrameRow::NAME,
    Phase::NAME,
    Object::NAME,
    Access::NAME,
    AccessSite::NAME,
];

/// The format of an exported table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line of names, then one line per row.
    Csv,
    /// An array of objects, one line per row.
    Json,
}

impl Profile {
    /// Writes one of [`TABLES`]; false if there is no table of that name.
    ///
    /// # Errors
    /// The writer's error.
    pub fn export(&self, table: &str, format: Format, out: &mut dyn Write) -> io::Result<bool> {
        match table {
            Process::NAME => rows(&self.processes, format, out)?,
            ThreadRow::NAME => rows(&thread_rows(&self.processes), format, out)?,
            SiteRow::NAME => rows(&site_rows(&self.sites), format, out)?,
            FrameRow::NAME => rows(&frame_rows(&self.sites), format, out)?,
            Phase::NAME => rows(&self.phases, format, out)?,
            Object::NAME => rows(&self.objects, format, out)?,
            Access::NAME => rows(&self.accesses, format, out)?,
            AccessSite::NAME => rows(&self.access_sites, format, out)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn rows<R: TableRow>(rows: &[R], format: Format, out: &mut dyn Write) -> io::Result<()> {
    if format == Format::Csv {
        let names: Vec<&str> = R::COLUMNS.iter().map(|column| column.name).collect();
        writeln!(out, "{}", names.join(","))?;
        for row in rows {
            let cells = (0..R::COLUMNS.len()).map(|at| csv(row.cell(at), R::COLUMNS[at].kind));
            writeln!(out, "{}", cells.collect::<Vec<_>>().join(","))?;
        }
        return Ok(());
    }
    let last = rows.len().saturating_sub(1);
    writeln!(out, "[")?;
    for (number, row) in rows.iter().enumerate() {
        let cell = |at: usize| {
            let column = R::COLUMNS[at];
            format!("\"{}\":{}", column.name, json(row.cell(at), column.kind))
        };
        let cells: Vec<String> = (0..R::COLUMNS.len()).map(cell).collect();
        writeln!(out, "{{{}}}{}", cells.join(","), if number < last { "," } else { "" })?;
    }
    writeln!(out, "]")
}

fn csv(cell: Cell, kind: Kind) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Text(text) if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Cell::Text(text) => text.to_string(),
        Cell::Number(number) => number_text(number, kind),
    }
}

fn json(cell: Cell, kind: Kind) -> String {
    match cell {
        Cell::Null => "null".to_owned(),
        Cell::Text(text) => serde_json::Value::from(&*text).to_string(),
        Cell::Number(number) => number_text(number, kind),
    }
}

fn number_text(number: u64, kind: Kind) -> String {
    if kind == Kind::Bool { (number != 0).to_string() } else { number.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: Format, expect: &str) {
        let phase = |name: &str, process| Phase {
            process,
            name: name.into(),
            end_ns: 5,
            ..Phase::default()
        };
        let phases = vec![phase("a \"b\", c", None), phase("d", Some(3))];
        let profile = Profile { phases, ..Profile::default() };
        let mut out = Vec::new();
        assert!(profile.export("phases", format, &mut out).unwrap());
        assert_eq!(String::from_utf8(out).unwrap(), expect);
        assert!(!profile.export("faces", format, &mut Vec::new()).unwrap());
    }

    #[test]
    fn texts_are_quoted_and_none_is_an_empty_field() {
        check(
            Format::Csv,
            "run,process,name,start_ns,end_ns\n0,,\"a \"\"b\"\", c\",0,5\n0,3,d,0,5\n",
        );
        check(
            Format::Json,
            "[\n{\"run\":0,\"process\":null,\"name\":\"a \\\"b\\\", c\",\"start_ns\":0,\"end_ns\":5},\n\
             {\"run\":0,\"process\":3,\"name\":\"d\",\"start_ns\":0,\"end_ns\":5}\n]\n",
        );
    }

    #[test]
    fn every_table_can_be_exported() {
        for table in TABLES {
            let mut out = Vec::new();
            assert!(Profile::default().export(table, Format::Csv, &mut out).unwrap());
            assert!(out.ends_with(b"\n") && out.len() > 8, "{table}");
        }
    }
}
