//! One HTML file that needs nothing beside it: no script, no network, figures inside.
//! In: headings, texts, tables, pictures. Out: HTML. Knows nothing of what they say.
//!
//! All text is escaped here, and pictures come as data, never as markup: whatever a name says, it
//! is a name. The page's own policy forbids scripts and requests on top of that.

use std::fmt::Write;

use crate::plot::{Bars, Lines, PlotError};
use crate::text::escaped;
use crate::{Align, HeatMap, Table};

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
"#;

const STYLE: &str = r"<style>
body { font: 15px/1.45 sans-serif; color: #222; background: #fff; margin: 2em auto;
  max-width: 75em; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-size: 0.92em }
th, td { padding: 0.15em 0.9em 0.15em 0; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #999; font-weight: 600 }
.number { text-align: right; font-variant-numeric: tabular-nums }
figure { margin: 1em 0; overflow-x: auto } figcaption { color: #555; font-size: 0.9em }
svg { max-width: 100%; height: auto }
pre { margin: 0.3em 0 0.3em 1.5em; font-size: 0.9em; overflow-x: auto }
.scroll { overflow-x: auto }
figure svg { background: #fff; border-radius: 4px }
@media (max-width: 60em) { body { margin: 1em auto } figure svg { min-width: 52em } }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #16181c } h2 { border-color: #444 } figcaption { color: #aaa } }
@media print { body { max-width: none; margin: 0 } details { display: none }
  figure, tr { break-inside: avoid } }
</style>
";

/// What a page shows.
pub trait Picture {
    /// Draws it.
    fn svg(&self) -> Result<String, PlotError>;
}

impl Picture for Bars {
    fn svg(&self) -> Result<String, PlotError> {
        Bars::svg(self)
    }
}

impl Picture for Lines {
    fn svg(&self) -> Result<String, PlotError> {
        Lines::svg(self)
    }
}

impl Picture for HeatMap {
    fn svg(&self) -> Result<String, PlotError> {
        HeatMap::svg(self)
    }
}

/// A page, from the top.
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with nothing but its title.
    pub fn new(title: &str) -> Page {
        let title = escaped(title);
        let body = format!("<h1>{title}</h1>\n");
        Page { title, body }
    }

    /// Begins a section.
    pub fn section(&mut self, heading: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escaped(heading));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
    }

    /// A table.
    pub fn table(&mut self, table: &Table) {
        let row = |cells: &[String], element: &str| {
            let cells = cells.iter().zip(table.columns()).map(|(cell, (_, align))| {
                let class = if *align == Align::Right { " class=\"number\"" } else { "" };
                format!("<{element}{class}>{}</{element}>", escaped(cell))
            });
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let names: Vec<String> = table.columns().iter().map(|(name, _)| name.clone()).collect();
        let rows: String = table.rows().iter().map(|cells| row(cells, "td")).collect();
        let _ = write!(
            self.body,
            "<div class=\"scroll\"><table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n\
             </table></div>\n",
            row(&names, "th")
        );
    }

    /// Lines that the reader can unfold.
    pub fn folded(&mut self, heading: &str, lines: &[String]) {
        let lines: Vec<String> = lines.iter().map(|line| escaped(line)).collect();
        let (heading, lines) = (escaped(heading), lines.join("\n"));
        let _ = write!(
            self.body,
            "<details><summary>{heading}</summary>\n<pre>{lines}</pre></details>\n"
        );
    }

    /// A picture with what it shows below it.
    ///
    /// # Errors
    /// When it cannot be drawn; the page is as before.
    pub fn figure(&mut self, picture: &dyn Picture, caption: &str) -> Result<(), PlotError> {
        let svg = picture.svg()?;
        let caption = escaped(caption);
        let _ =
            write!(self.body, "<figure>\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>\n");
        Ok(())
    }

    /// The file.
    pub fn html(&self) -> String {
        let Page { title, body } = self;
        format!("{HEAD}<title>{title}</title>\n{STYLE}</head>\n<body>\n{body}</body>\n</html>\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Series;

    const HOSTILE: &str = "</td><script>alert(1)</script><img src=x onerror='y'>";

    #[test]
    fn names_stay_names_wherever_they_stand() {
        let mut page = Page::new(HOSTILE);
        page.section(HOSTILE);
        page.paragraph(HOSTILE);
        page.folded(HOSTILE, &[HOSTILE.to_owned()]);
        let mut table = Table::new(vec![(HOSTILE.to_owned(), Align::Right)]);
        table.row(vec![HOSTILE.to_owned()]);
        page.table(&table);
        let lines = Lines {
            title: HOSTILE.to_owned(),
            x: HOSTILE.to_owned(),
            y: HOSTILE.to_owned(),
            series: vec![Series { name: HOSTILE.to_owned(), points: vec![(0.0, 1.0)] }],
            errors: Vec::new(),
            expected: Vec::new(),
            powers: false,
            mark: None,
        };
        page.figure(&lines, HOSTILE).expect("drawn");
        let html = page.html();
        assert!(!html.contains("<script") && !html.contains("<img"), "{html}");
        assert!(html.matches("&lt;script&gt;").count() >= 12, "{html}");
    }

    #[test]
    fn a_page_is_for_phones_the_dark_and_paper_too() {
        let html = Page::new("t").html();
        for rule in ["initial-scale=1", "prefers-color-scheme: dark", "max-width: 60em", "print"] {
            assert!(html.contains(rule), "{rule}");
        }
    }

    #[test]
    fn a_page_asks_for_nothing() {
        let html = Page::new("t").html();
        assert!(html.contains("default-src 'none'"), "{html}");
        for word in ["http://", "https://", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(word), "{word}");
        }
    }
}
