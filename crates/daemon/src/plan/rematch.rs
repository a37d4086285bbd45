//! Names for stacks that a plan may know from another build, found on a thread of its own.
//! In: stacks by address. Out: the same in words, when they are found. Knows nothing of plans but
//! the words.
//!
//! Parsing debug information takes time, and the file may be anything: the loop never waits for it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tiercel_plan::{StackKeys, numbered};
use tiercel_symbolize::{SiteFrame, Symbols};

/// Questions that may wait; further ones are asked again later.
const QUESTIONS_MAX: usize = 1024;

/// Stacks that are looked up over all programs: a millisecond each at first, and less later.
const ASKED_MAX: usize = 1 << 15;

type Question = (u64, Arc<[SiteFrame]>);
type Answer = (u64, StackKeys);

/// Asks for names. The thread starts with the first question.
#[derive(Default)]
pub(crate) struct Matcher {
    thread: Option<(SyncSender<Question>, Receiver<Answer>)>,
    asked: HashSet<u64>,
}

impl Matcher {
    /// Asks for the names of a stack, once; false when the question has to be asked again.
    pub(crate) fn ask(&mut self, hash: u64, frames: &Arc<[SiteFrame]>) -> bool {
        if self.asked.contains(&hash) || self.asked.len() >= ASKED_MAX {
            return true;
        }
        if self.thread.is_none() {
            self.thread = start();
        }
        let Some((questions, _)) = &self.thread else {
            return true; // no thread is to be had: what was rebuilt stays unknown
        };
        let taken = questions.try_send((hash, Arc::clone(frames))).is_ok();
        if taken {
            self.asked.insert(hash);
        }
        taken
    }

    /// What was found since the last time.
    pub(crate) fn answers(&self) -> Vec<Answer> {
        self.thread.iter().flat_map(|(_, answers)| answers.try_iter()).collect()
    }
}

fn start() -> Option<(SyncSender<Question>, Receiver<Answer>)> {
    let (questions, inbox) = sync_channel::<Question>(QUESTIONS_MAX);
    let (outbox, answers) = sync_channel::<Answer>(ASKED_MAX);
    let work = move || {
        let mut symbols = Symbols::new();
        while let Ok((hash, frames)) = inbox.recv() {
            if outbox.send((hash, keys(&mut symbols, &frames))).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("tiercel-names".into()).spawn(work).ok()?;
    Some((questions, answers))
}

fn keys(symbols: &mut Symbols, frames: &[SiteFrame]) -> StackKeys {
    let named: Vec<(String, String, String, u32)> = frames
        .iter()
        .map(|frame| {
            let named = symbols.innermost(frame);
            let (file, line) = named.line.unwrap_or_default();
            let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
            let number = numbered(Some((!frame.path.as_os_str().is_empty(), frame.addr)));
            (text(&frame.path), named.function, text(&file), line.max(number))
        })
        .collect();
    StackKeys::of(named.iter().map(|(module, function, file, line)| {
        (module.as_str(), function.as_str(), file.as_str(), *line)
    }))
}
