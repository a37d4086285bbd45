//! Everything that can happen to a daemon, as one closed list, and the queue in which it waits.
//! In: events from the poller, the clock and the mover. Out: the same, one at a time, in order.
//! Knows nothing of how an event is handled.

use crate::moves::queue::Completion;
use crate::net::poller::PeerId;
use crate::net::protocol::Request;
use std::collections::VecDeque;
use tiercel_ledger::Range;

/// Events that may wait: what one ready descriptor brings (16 requests), what is
/// due by the clock (5), and what the mover completed (2). The rest is headroom.
const EVENTS_MAX: usize = 64;

/// What happened.
pub(crate) enum Event {
    /// Processes that sent a valid hello wait to be hosted.
    Greet,
    /// A client died; its session number.
    ClientGone(u32),
    /// A turn of all users is due: records are taken, object tables read on.
    Drain,
    /// A drain of the sampler may be due; with `is_forced` it is.
    Sample {
        /// Drain it whatever its schedule says: the interval ends.
        is_forced: bool,
    },
    /// A tick is due. Its handler requests the drains that come before [`Event::IntervalEnd`].
    Tick,
    /// The drains of a tick are done: the interval ends.
    IntervalEnd,
    /// New extents, and these stale ones, are to be looked up; a decision follows.
    LookUp(Vec<Range>),
    /// The mover completed a job.
    Completed(Completion),
    /// The modelled mover located new objects when a phase was entered: a decision follows.
    BirthsLocated,
    /// A request came over the control socket.
    Request(PeerId, Request),
    /// It is time to end.
    Shutdown,
}

impl Event {
    /// Whether it is handled in a pause: it serves processes and users, and decides nothing.
    fn is_for_others(&self) -> bool {
        match self {
            Event::Greet
            | Event::ClientGone(_)
            | Event::Drain
            | Event::Request(..)
            | Event::Shutdown => true,
            // Samples are drained only after it was checked whose memory is looked at.
            Event::Sample { .. }
            | Event::Tick
            | Event::IntervalEnd
            | Event::LookUp(_)
            | Event::Completed(_)
            | Event::BirthsLocated => false,
        }
    }
}

/// Events in the order of their handling. Handlers push, the loop takes: while a handler runs no
/// other can begin, so that every handler sees, and leaves, a consistent state.
#[derive(Default)]
pub(crate) struct EventQueue {
    waiting: VecDeque<Event>,
    is_handling: bool,
    /// The last event that was taken was a greeting.
    has_greeted: bool,
}

impl EventQueue {
    /// Adds an event behind all others.
    pub(crate) fn push(&mut self, event: Event) {
        assert!(self.waiting.len() < EVENTS_MAX, "more than {EVENTS_MAX} events wait");
        self.waiting.push_back(event);
    }

    /// Adds events before all others, in their order: what a handler set going is completed first.
    pub(crate) fn push_first(&mut self, events: impl DoubleEndedIterator<Item = Event>) {
        events.rev().for_each(|event| self.waiting.push_front(event));
        assert!(self.waiting.len() <= EVENTS_MAX, "more than {EVENTS_MAX} events wait");
    }

    /// Processes came that want to be hosted: they wait for the handler that runs, and for no other
    /// one. What waits has its turn between two such events, however many processes come.
    pub(crate) fn greet_next(&mut self) {
        if !self.has_greeted {
            self.push_first([Event::Greet].into_iter());
        }
    }

    /// Takes the next event; its handler runs until [`EventQueue::handled`].
    pub(crate) fn take(&mut self) -> Option<Event> {
        assert!(!self.is_handling, "an event was taken while a handler runs");
        let event = self.waiting.pop_front();
        self.has_greeted = matches!(event, Some(Event::Greet));
        self.is_handling = event.is_some();
        event
    }

    /// Takes the next of those that are handled in a pause of a handler, by no other handler that
    /// works long. All others wait until it has ended.
    pub(crate) fn take_in_pause(&mut self) -> Option<Event> {
        assert!(self.is_handling, "no handler pauses");
        let at = self.waiting.iter().position(Event::is_for_others)?;
        self.waiting.remove(at)
    }

    /// Whether a handler runs.
    pub(crate) fn is_handling(&self) -> bool {
        self.is_handling
    }

    /// The handler of the last event taken has ended.
    pub(crate) fn handled(&mut self) {
        assert!(self.is_handling, "no handler runs");
        self.is_handling = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(event: Option<Event>) -> &'static str {
        match event {
            Some(Event::Greet) => "greet",
            Some(Event::Drain) => "drain",
            Some(Event::Tick) => "tick",
            Some(Event::IntervalEnd) => "interval end",
            Some(Event::BirthsLocated) => "births located",
            Some(_) => "other",
            None => "none",
        }
    }

    #[test]
    fn completions_come_before_what_waited() {
        let mut events = EventQueue::default();
        events.push(Event::Drain);
        events.push(Event::Tick);
        assert_eq!(name(events.take()), "drain");
        events.handled();
        events.push_first([Event::BirthsLocated, Event::IntervalEnd].into_iter());
        for expected in ["births located", "interval end", "tick"] {
            assert_eq!(name(events.take()), expected);
            events.handled();
        }
        assert_eq!(name(events.take()), "none");
    }

    #[test]
    fn who_comes_waits_for_one_handler_and_a_flood_of_processes_for_none() {
        let mut events = EventQueue::default();
        for event in [Event::Drain, Event::Tick, Event::BirthsLocated] {
            events.push(event);
        }
        let mut next = || {
            events.greet_next();
            let name = name(events.take());
            events.handled();
            name
        };
        let taken: Vec<_> = (0..5).map(|_| next()).collect();
        assert_eq!(taken, ["greet", "drain", "greet", "tick", "greet"]);
    }

    #[test]
    fn in_a_pause_others_are_served_and_decisions_wait() {
        let mut events = EventQueue::default();
        for event in [Event::IntervalEnd, Event::Tick, Event::Drain, Event::BirthsLocated] {
            events.push(event);
        }
        assert_eq!(name(events.take()), "interval end");
        assert_eq!(name(events.take_in_pause()), "drain");
        assert_eq!(name(events.take_in_pause()), "none");
        events.handled();
        assert_eq!(name(events.take()), "tick");
        events.handled();
        assert_eq!(name(events.take()), "births located");
    }

    #[test]
    #[should_panic(expected = "while a handler runs")]
    fn a_handler_cannot_take_an_event() {
        let mut events = EventQueue::default();
        events.push(Event::Tick);
        events.push(Event::Drain);
        events.take();
        events.take();
    }
}
