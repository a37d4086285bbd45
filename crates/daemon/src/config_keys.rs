//! What each key of a configuration file means.
//! In: a configuration file's text. Out: the same with a comment above each key. Knows nothing of
//! the types that read it; a test compares it with them.

/// Widest line of a comment: with the file's 80 columns for code a terminal shows it whole.
const WIDTH: usize = 78;

/// Dotted keys in the order of the file, and what they mean.
const KEYS: &[(&str, &str)] = &[
    (
        "fast",
        "Budget of the fastest memory: a share of the programs' peak (\"25%\"), a size (\"8 \
         GiB\"), or \"all\".",
    ),
    (
        "sampler",
        "What observes accesses: auto, emulator, perf, bpf, probe, hint, compiled or none \
         (docs/samplers.md).",
    ),
    (
        "machine",
        "Model moves on this machine instead of moving memory: a description's file or a \
         built-in name (`tiercel topo --machine NAME`). Empty: this machine. A table with \
         `name` and [[machine.node]] entries corrects what is known of nodes: id, name, kind, \
         tier, capacity, figures, energy, curve.",
    ),
    (
        "secure_heap",
        "End programs, as glibc does, at a double free and at other frees that would corrupt \
         the heap.",
    ),
    (
        "learn",
        "`tiercel run` keeps what it learned of a program for its next run, and begins with it \
         (docs/learned.md).",
    ),
    ("policy.tick_ms", "Time between two ticks, at which it is decided what moves; milliseconds."),
    (
        "policy.first_tick_ms",
        "The first ticks are as short as this and lengthen by a twentieth each; 0: all \
         are equally long, as MAT has them.",
    ),
    (
        "policy.prioritise",
        "How objects are ranked where `gate` is \"none\": fifo, lru, apb (accesses per byte), \
         cpb (cost per byte), first-come, or expression:TEXT.",
    ),
    (
        "policy.aggregate.ewma.alpha",
        "Weight of the newest interval in the moving average of heat (MAT Eq. 1).",
    ),
    (
        "policy.trigger.time.ticks",
        "Decide every so many ticks. Other triggers: llcmpi (threshold, intervals), \
         allocation (bytes), \"never\".",
    ),
    (
        "policy.trigger.time.first",
        "Ticks until the first decision, which double until they are `ticks`.",
    ),
    (
        "policy.enforce.fill.percent",
        "Share of a tier's budget that is filled; the rest is for births until the next \
         decision.",
    ),
    (
        "policy.enforce.fill.follow_births",
        "Keep that rest only as far as births needed it of late; MAT always keeps it.",
    ),
    (
        "policy.gate.shadow.loss",
        "Share of the run time that moves may cost before they have brought anything. `gate = \
         \"none\"` enforces every decision, as MAT does.",
    ),
    (
        "policy.gate.shadow.move_ns_per_byte",
        "Cost of moving a byte until it was measured, nanoseconds.",
    ),
    ("policy.gate.shadow.bytes_per_s", "Most bytes moved in a second; 0: no limit."),
    ("sampling.period", "Events for each sample at the start; it adapts to the budget."),
    ("sampling.cpu_budget", "Share of one CPU that sampling may cost."),
    (
        "sampling.source",
        "Events of perf and bpf: \"hardware\", or \"page-faults\" (first touches alone, on \
         any machine).",
    ),
    ("sampling.events", "Names of events instead of the processor's usual ones."),
    (
        "sampling.dirtied",
        "Also sample stores that make a line dirty, where the sampler reports them.",
    ),
    ("sampling.ring_bytes", "Bytes of one ring of samples: perf has one for each CPU, bpf one."),
    ("sampling.drain_max", "Most samples that are read at once."),
    ("sampling.page_events", "Also report first touches of OS pages."),
    ("sampling.probe_spots", "Most spots of 32 KiB that the probe watches for writes at once."),
    ("sampling.probe_interval_ms", "Shortest time between two looks of the probe, milliseconds."),
    ("sampling.seed", "Seed of the probe's random choice."),
    ("sampling.hint_window_ms", "How long a pass of the sampler hint should take, milliseconds."),
    ("sampling.rate", "Share of the cache lines that compiled code reports on."),
    ("sampling.caches", "Caches that compiled code models, first level to last: \"32K/8,1M/16\"."),
    ("objects.extent", "Larger objects are tiered in pieces of at most this size."),
    (
        "objects.finest",
        "Least size of such a piece; the same as `extent`: all pieces are that large.",
    ),
    ("objects.per_process_max", "Most extents of one process."),
    ("objects.max", "Most extents altogether."),
    (
        "pages.mode",
        "What `tiercel attach` does when the memory near an accessor is full: benefit, cpm, \
         cpmx, opm, opmx or opm-bd (docs/pages.md).",
    ),
    ("pages.history", "Windows of accesses that are remembered, 1 to 8."),
    ("pages.window_ms", "Length of a window where no sampler ends it, milliseconds."),
    (
        "pages.reserve",
        "Bytes kept free on each node of the fastest tier; 0: 16 OS pages for each CPU.",
    ),
    (
        "pages.horizon_s",
        "How long today's access rates are believed to last, seconds: a move must pay within \
         that; 0: four histories.",
    ),
    ("daemon.clients_max", "Most processes at once."),
    (
        "daemon.poll_min",
        "Shortest time between two looks at what processes report, while there is much.",
    ),
    ("daemon.poll_max", "Longest time between two, while there is little."),
    ("daemon.attach_from", "A process is hosted once it has allocated so much; 0: from its start."),
];

/// The text of a configuration file with what each key means above it.
pub(crate) fn commented(file: &str) -> String {
    let (mut out, mut section) = (String::new(), String::new());
    for line in file.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((key, _)) = line.split_once(" = ") {
            meaning(&format!("{section}{key}"))
                .into_iter()
                .for_each(|text| comment(&mut out, text));
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

fn meaning(key: &str) -> Option<&'static str> {
    KEYS.iter().find(|(known, _)| *known == key).map(|(_, meaning)| *meaning)
}

/// The text as lines of a comment.
fn comment(out: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            out.push_str(&line);
            out.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    /// Keys that the defaults leave out.
    const UNSET: &[&str] = &["sampling.caches"];

    fn keys(prefix: &str, table: &toml::Table, out: &mut Vec<String>) {
        for (name, value) in table {
            match value {
                toml::Value::Table(inner) => keys(&format!("{prefix}{name}."), inner, out),
                _ => out.push(format!("{prefix}{name}")),
            }
        }
    }

    #[test]
    fn every_key_is_explained_and_every_explanation_has_a_key() {
        let text = Settings::default().to_toml();
        let mut found = Vec::new();
        keys("", &text.parse().unwrap(), &mut found);
        found.extend(UNSET.iter().map(|key| (*key).to_owned()));
        let mut known: Vec<String> = KEYS.iter().map(|(key, _)| (*key).to_owned()).collect();
        found.sort();
        known.sort();
        assert_eq!(found, known);
        let hyphened = known.iter().find(|key| key.contains('-'));
        assert_eq!(hyphened, None, "keys have one spelling");
    }

    #[test]
    fn comments_change_nothing() {
        let (settings, text) = (Settings::default(), Settings::default().to_toml());
        let commented = commented(&text);
        assert_eq!(Settings::from_toml(&commented).unwrap(), settings);
        let explained = "# Most processes at once.\nclients_max = 4096\n";
        assert!(commented.contains(explained), "{commented}");
        assert!(commented.lines().all(|line| line.len() <= WIDTH), "{commented}");
    }
}
