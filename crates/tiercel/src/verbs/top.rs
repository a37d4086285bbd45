//! `tiercel top`: objects of running programs, live or once.
//! In: [`TopArgs`], a daemon's answers, keys. Out: a screen or a table. Knows nothing of objects'
//! lives.

use crate::args::TopArgs;
use crate::figures::plural;
use crate::link::Link;
use crate::privilege::symbol_reader;
use crate::show;
use crate::terminal::{say, say_json};
use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Paragraph, Wrap};
use ratatui::{DefaultTerminal, Frame};
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;
use tiercel_daemon::protocol::{Order, ROWS_MAX, Request};
use tiercel_daemon::{ProcessRow, SiteRows, Summary};
use tiercel_symbolize::Symbols;

/// Time between two updates. Chosen, not measured: the daemon answers within milliseconds.
const REFRESH: Duration = Duration::from_secs(1);

const KEYS: &str = "h heat  s size  i site  n node  p processes  ? help  q quit";

const HELP: &str = "\
h  sites by heat        s  sites by size       i  sites by function and line
n  sites by node        p  processes           q  quit

*         the budget of fast memory has room for it, wholly or in part
size      bytes that live; of what is dead the most at a time
objects   how many were allocated, or blocks of small ones
fits      how much of it the budget has room for
accesses  as the samples represent them, since its process attached
per KiB   accesses for each KiB of its largest size
heat/s    accesses a second of late: a moving average over about ten ticks,
          so it falls when a site is no longer used, and accesses do not
node      where its memory lies
where     program, and function and line of the allocation
?         any key returns
";

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Sites,
    Processes,
    Help,
}

/// `tiercel top`.
pub fn top(args: &TopArgs) -> Result<()> {
    let mut view = View {
        link: Link::of(&args.peer)?,
        symbols: Symbols::new(&symbol_reader()),
        shown: if args.processes { Shown::Processes } else { Shown::Sites },
        order: args.by.into(),
        limit: args.limit.min(ROWS_MAX),
        summary: Summary::default(),
        sites: SiteRows::default(),
        processes: Vec::new(),
    };
    view.look()?;
    if args.json {
        return match args.processes {
            true => say_json("top-processes", &json!({ "processes": view.processes })),
            false => say_json("top", &view.sites),
        };
    }
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let table = view.table();
        return say(&(view.heading() + "\n" + &table));
    }
    let terminal = ratatui::try_init().context("cannot draw on this terminal; use --once")?;
    let ended = view.live(terminal);
    ratatui::restore();
    ended
}

struct View {
    link: Link,
    symbols: Symbols,
    shown: Shown,
    order: Order,
    limit: usize,
    summary: Summary,
    sites: SiteRows,
    processes: Vec<ProcessRow>,
}

impl View {
    fn look(&mut self) -> Result<()> {
        let limit = self.limit;
        if self.shown == Shown::Processes {
            let rows = self.link.ask(&Request::Processes { limit }, "processes")?;
            self.processes = serde_json::from_value(rows).context("the daemon's processes")?;
        } else {
            let rows = self.link.ask(&Request::Sites { by: self.order, limit }, "objects")?;
            self.sites = serde_json::from_value(rows).context("the daemon's sites")?;
        }
        let status = self.link.ask(&Request::Status, "status")?;
        self.summary = serde_json::from_value(status).context("the daemon's status")?;
        Ok(())
    }

    fn heading(&self) -> String {
        let s = &self.summary;
        let bytes = tiercel_machine::short_bytes;
        format!(
            "{}, {} live in {} extents, {} of {} fast memory used, {} samples by {}{}",
            plural(s.clients.now, "process", "processes"),
            bytes(s.objects.live_bytes),
            s.objects.extents,
            bytes(s.budget.used_bytes),
            bytes(s.budget.fast_bytes),
            s.samples.seen,
            s.sampler,
            if s.modelled { "; MODELLED: no memory is moved" } else { "" },
        )
    }

    fn table(&mut self) -> String {
        match self.shown {
            Shown::Sites => show::sites(&self.sites.rows, &self.summary, &mut self.symbols),
            Shown::Processes => show::processes(&self.processes, &self.summary),
            Shown::Help => HELP.to_owned(),
        }
    }

    fn live(&mut self, mut terminal: DefaultTerminal) -> Result<()> {
        loop {
            let table = self.table();
            let heading = self.heading();
            terminal.draw(|frame| draw(frame, &heading, &table))?;
            // A key shows its effect at once; without one the screen is as old as REFRESH.
            if event::poll(REFRESH)?
                && let Event::Key(key) = event::read()?
                && !self.key(key)
            {
                return Ok(());
            }
            self.look()?;
        }
    }

    /// False: the user quits.
    fn key(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let order = match key.code {
            KeyCode::Char('c') if control => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('p') => {
                self.shown = Shown::Processes;
                return true;
            }
            KeyCode::Char('?') if self.shown != Shown::Help => {
                self.shown = Shown::Help;
                return true;
            }
            KeyCode::Char('h') => Order::Heat,
            KeyCode::Char('s') => Order::Size,
            KeyCode::Char('i') => Order::Site,
            KeyCode::Char('n') => Order::Node,
            _ if self.shown == Shown::Help => self.order,
            _ => return true,
        };
        (self.shown, self.order) = (Shown::Sites, order);
        true
    }
}

fn draw(frame: &mut Frame<'_>, heading: &str, table: &str) {
    // On a narrow terminal it has several lines: the budget is at its end.
    let lines = wrapped_lines(heading, frame.area().width);
    let heading = Paragraph::new(heading).style(Style::new().add_modifier(Modifier::BOLD));
    let heading = heading.wrap(Wrap { trim: true });
    let areas = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .split(frame.area());
    let (columns, rows) = table.split_once('\n').unwrap_or((table, ""));
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(heading, areas[0]);
    frame.render_widget(Paragraph::new(Text::styled(columns, reversed)), areas[1]);
    frame.render_widget(Paragraph::new(rows), areas[2]);
    frame.render_widget(Paragraph::new(KEYS), areas[3]);
}

/// Lines of a text that is wrapped between words.
fn wrapped_lines(text: &str, width: u16) -> u16 {
    let (mut lines, mut used) = (1, 0);
    for word in text.split_whitespace() {
        let chars = word.chars().count();
        let wanted = if used == 0 { chars } else { used + 1 + chars };
        (lines, used) =
            if wanted <= usize::from(width) { (lines, wanted) } else { (lines + 1, chars) };
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn the_screen_has_heading_columns_rows_and_keys() {
        let mut terminal = Terminal::new(TestBackend::new(60, 6)).unwrap();
        terminal.draw(|frame| draw(frame, "3 processes", "size  where\n1MiB  main\n")).unwrap();
        let screen = terminal.backend().to_string();
        for text in ["3 processes", "size  where", "1MiB  main", "q quit"] {
            assert!(screen.contains(text), "{text} is missing:\n{screen}");
        }
    }

    #[test]
    fn a_heading_wider_than_the_screen_takes_more_lines() {
        let mut terminal = Terminal::new(TestBackend::new(60, 8)).unwrap();
        let heading = "3 processes, 1GiB live in 300 extents, 1GiB of 2GiB fast memory used, 9 \
                       samples by probe; MODELLED: nothing moves";
        terminal.draw(|frame| draw(frame, heading, "size  where\n1MiB  main\n")).unwrap();
        let screen = terminal.backend().to_string();
        for text in ["3 processes", "nothing moves", "size  where", "1MiB  main", "q quit"] {
            assert!(screen.contains(text), "{text} is missing:\n{screen}");
        }
    }

    #[test]
    fn help_explains_every_column() {
        let columns = show::SITE_COLUMNS.iter().filter(|(name, _)| !name.is_empty());
        for (name, _) in columns {
            let is_explained = |line: &str| line.starts_with(&format!("{name} "));
            assert!(HELP.lines().any(is_explained), "{name}");
        }
    }
}
