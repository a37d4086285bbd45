//! `tiercel top`: objects of running programs, live or once.
//! In: [`TopArgs`], a daemon's answers, keys. Out: a screen or a table. Knows nothing of objects'
//! lives.

use crate::args::TopArgs;
use crate::link::Link;
use crate::privilege::symbol_reader;
use crate::show;
use crate::terminal::{say, say_json};
use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use std::io::IsTerminal;
use std::time::Duration;
use tiercel_daemon::protocol::{Order, ROWS_MAX, Request};
use tiercel_daemon::{SiteRows, Summary};
use tiercel_symbolize::Symbols;

/// Time between two updates. Chosen, not measured: the daemon answers within milliseconds.
const REFRESH: Duration = Duration::from_secs(1);

const KEYS: &str = "h heat  s size  i site  n node  q quit";

/// `tiercel top`.
pub fn top(args: &TopArgs) -> Result<()> {
    let mut view = View {
        link: Link::open(args.peer.socket.as_deref())?,
        symbols: Symbols::new(&symbol_reader()),
        order: args.by.into(),
        limit: args.limit.min(ROWS_MAX),
        summary: Summary::default(),
        sites: SiteRows::default(),
    };
    view.look()?;
    if args.json {
        return say_json(&view.sites);
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
    order: Order,
    limit: usize,
    summary: Summary,
    sites: SiteRows,
}

impl View {
    fn look(&mut self) -> Result<()> {
        let request = Request::Sites { by: self.order, limit: self.limit };
        let sites = self.link.ask(&request, "objects")?;
        self.sites = serde_json::from_value(sites).context("the daemon's sites")?;
        let status = self.link.ask(&Request::Status, "status")?;
        self.summary = serde_json::from_value(status).context("the daemon's status")?;
        Ok(())
    }

    fn heading(&self) -> String {
        let s = &self.summary;
        let bytes = tiercel_machine::short_bytes;
        format!(
            "{} processes, {} live in {} extents, {} of {} fast memory used, {} samples by {}{}",
            s.clients.now,
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
        show::sites(&self.sites.rows, &self.summary, &mut self.symbols)
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
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('h') => self.order = Order::Heat,
            KeyCode::Char('s') => self.order = Order::Size,
            KeyCode::Char('i') => self.order = Order::Site,
            KeyCode::Char('n') => self.order = Order::Node,
            _ => {}
        }
        true
    }
}

fn draw(frame: &mut Frame<'_>, heading: &str, table: &str) {
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .split(frame.area());
    let (columns, rows) = table.split_once('\n').unwrap_or((table, ""));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(Text::styled(heading, bold)), areas[0]);
    frame.render_widget(Paragraph::new(Text::styled(columns, reversed)), areas[1]);
    frame.render_widget(Paragraph::new(rows), areas[2]);
    frame.render_widget(Paragraph::new(KEYS), areas[3]);
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
}
