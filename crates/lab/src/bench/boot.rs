//! One boot of a real guest that executes runs. In: a [`Guest`], the workloads' programs. Out: the
//! guest's [`Event`]s as they arrive. Knows nothing of results.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::drive::Boot;
use super::experiment::{Experiment, Metric};
use super::run_result::{Event, Measured, Spec, count_by_plugin};
use super::runs::{Fingerprints, Run, Target, fingerprint};
use crate::cli::{ourselves, same_directory, take_along};
use crate::image::in_path;
use crate::mark;
use crate::{Guest, Model, Payload, Request, Streams, Timing};

/// Path of the specs in the guest.
const SPECS: &str = "lab/specs.json";

/// Time for the boot and power-off of a timed guest, on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Bytes of the guest's standard error that are kept for a failure.
const SAID_BYTES_MAX: usize = 4096;

/// The programs that an experiment needs, with their paths.
pub(crate) struct Programs {
    /// By workload: its command in the guest.
    commands: BTreeMap<String, Vec<String>>,
    /// By workload: its command on the host.
    words: BTreeMap<String, Vec<String>>,
    /// For all guests: (path here, path there).
    files: Vec<(PathBuf, String)>,
}

impl Programs {
    /// Finds the program of every workload; `files` go into every guest as well.
    pub(crate) fn find(experiment: &Experiment, files: &[(PathBuf, String)]) -> Result<Programs> {
        let mut programs =
            Programs { commands: BTreeMap::new(), words: BTreeMap::new(), files: files.to_vec() };
        for workload in &experiment.workloads {
            let mut words = workload.command.words();
            let about = || format!("workload {:?}", workload.name);
            let program = locate(&words[0]).with_context(about)?;
            words[0] = program.to_string_lossy().into_owned();
            let commands = take_along(&words, &mut Payload::default()).with_context(about)?;
            programs.commands.insert(workload.name.clone(), commands);
            programs.words.insert(workload.name.clone(), words);
        }
        Ok(programs)
    }

    /// Hashes of everything that runs depend on besides the experiment's text.
    pub(crate) fn fingerprints(
        &self,
        experiment: &Experiment,
        guest: &Guest,
        plugin: Option<&Path>,
    ) -> Result<Fingerprints> {
        let hash_of = |payload: Payload| fingerprint(&payload.finish(&[]));
        let mut programs = Vec::new();
        for workload in &experiment.workloads {
            let mut payload = Payload::default();
            take_along(&self.words[&workload.name], &mut payload)?;
            for (here, there) in &self.files {
                payload.tree(here, there)?;
            }
            programs.push(hash_of(payload));
        }
        let mut tiercel = Payload::default();
        ourselves(&mut tiercel)?;
        let plugin = match plugin {
            Some(path) => fingerprint(
                &std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?,
            ),
            None => String::new(),
        };
        Ok(Fingerprints {
            guest: guest.fingerprint()?,
            plugin,
            tiercel: hash_of(tiercel),
            programs,
        })
    }
}

/// A program as an experiment names it: a path, a workload, or a name in `PATH`.
fn locate(name: &str) -> Result<PathBuf> {
    if name.contains('/') {
        let path = PathBuf::from(name);
        anyhow::ensure!(path.is_file(), "{name}: no such file here");
        return Ok(path);
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let targets = [beside.map(|dir| dir.join("../workloads")), Some("target/workloads".into())];
    // Archives accept no path that contains `..`.
    let targets =
        targets.into_iter().flatten().filter_map(|dir| dir.join(name).canonicalize().ok());
    let found = targets.into_iter().find(|path| path.is_file());
    found.or_else(|| in_path(name)).with_context(|| {
        format!("no program {name:?}: not a workload (make -C workloads), nor in PATH")
    })
}

/// Boots the guests of one experiment.
pub(crate) struct GuestBoot<'a> {
    pub(crate) guest: &'a Guest,
    pub(crate) experiment: &'a Experiment,
    pub(crate) programs: &'a Programs,
    pub(crate) plugin: Option<&'a Path>,
    /// The folder for profiles and plans, with a subfolder for each machine.
    pub(crate) keep: &'a Path,
}

impl Boot for GuestBoot<'_> {
    fn boot(
        &mut self,
        target: &Target,
        batch: &[(&Run, Option<u64>)],
        events: &mut (dyn FnMut(Event, f64) + Send),
    ) -> Result<()> {
        let limit = Duration::from_secs(self.experiment.limit_s);
        let deadline = Mutex::new(Instant::now() + BOOT_LIMIT + limit);
        let by_marks = batch.iter().any(|(run, _)| run.workload.metric == Metric::Regions);
        // Of runs with all of one memory, what the plugin counted bounds the others.
        let sizes = batch.iter().all(|(run, _)| run.sized_by.is_none());
        let mut held = Vec::new();
        let mut hold = |event: Event, host_s: f64| held.push((event, host_s));
        let mut stdout = Reader {
            // What the plugin counted is known when the guest has ended.
            events: if by_marks || sizes { &mut hold } else { &mut *events },
            pending: Vec::new(),
            last: Instant::now(),
            heard: &mut || {
                *deadline.lock().expect("no thread panics while it holds the lock") =
                    Instant::now() + limit
            },
        };
        let mut stderr = Tail::default();
        let Experiment { prefetch, share, regions_only, .. } = *self.experiment;
        let model = Model { prefetch, share, regions_only };
        let plans = batch.iter().any(|(run, _)| run.choice.plan.is_some());
        let keep = self.keep.join(&target.name);
        let request = Request {
            topology: &target.topology,
            payload: self.payload(target, batch)?,
            command: &format!("{}exec tiercel lab agent /{SPECS}\n", same_directory()?),
            environment: &[],
            timeout: limit,
            out: plans.then_some(&keep),
            timing: self.plugin.map(|plugin| Timing {
                plugin,
                machine: &target.machine,
                model,
                trace: None,
            }),
        };
        let streams = Streams { stdout: &mut stdout, stderr: &mut stderr };
        let until = || *deadline.lock().expect("no thread panics while it holds the lock");
        let outcome = self.guest.run_until(request, streams, &until);
        let stats = outcome.as_ref().ok().and_then(|outcome| outcome.timing.as_deref());
        if let Some(stats) = stats.filter(|_| sizes) {
            let metrics: Vec<Metric> = batch.iter().map(|(run, _)| run.workload.metric).collect();
            count_by_plugin(&mut measured(&mut held), &metrics, stats);
        }
        for (event, host_s) in held {
            let event = if by_marks { event.timed_by_marks(stats) } else { event };
            events(event, host_s);
        }
        let outcome = outcome?;
        if outcome.status != 0 {
            bail!("the guest's agent ended with status {}: {}", outcome.status, stderr.text());
        }
        Ok(())
    }

    fn command(&self, run: &Run) -> Vec<String> {
        self.programs.commands[&run.workload.name].clone()
    }
}

impl GuestBoot<'_> {
    fn payload(&self, target: &Target, batch: &[(&Run, Option<u64>)]) -> Result<Payload> {
        let mut payload = Payload::default();
        ourselves(&mut payload)?;
        for (run, _) in batch {
            take_along(&self.programs.words[&run.workload.name], &mut payload)?;
        }
        for (here, there) in &self.programs.files {
            payload.tree(here, there)?;
        }
        let (fast, slow) = target.tiers();
        let all: Vec<u16> = fast.into_iter().chain(slow).collect();
        payload.bytes("lab/interleave", 0o755, &mark::interleave(&all));
        let specs: Vec<Spec> = batch
            .iter()
            .map(|(run, fast)| self.spec(self.experiment, target, run, *fast))
            .collect();
        let text = serde_json::to_string(&specs).expect("plain data serialises");
        payload.text(SPECS, 0o644, &text);
        Ok(payload)
    }
}

/// The measurements among events.
fn measured(events: &mut [(Event, f64)]) -> Vec<&mut Measured> {
    let mut all = Vec::new();
    for (event, _) in events {
        if let Event::Done(measured) = event {
            all.push(&mut **measured);
        }
    }
    all
}

/// Reads events, one per line, and reports each as it arrives.
struct Reader<'a> {
    events: &'a mut (dyn FnMut(Event, f64) + Send),
    heard: &'a mut (dyn FnMut() + Send),
    pending: Vec<u8>,
    last: Instant,
}

impl Write for Reader<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            // Other lines are stray output of the guest's system.
            if let Ok(event) = serde_json::from_slice(&line) {
                (self.heard)();
                let host_s = self.last.elapsed().as_secs_f64();
                self.last = Instant::now();
                (self.events)(event, host_s);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the last bytes that were written.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).trim().to_owned()
    }
}

impl Write for Tail {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        let over = self.0.len().saturating_sub(SAID_BYTES_MAX);
        self.0.drain(..over);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_arrive_whole_and_other_lines_are_ignored() {
        let mut got = Vec::new();
        let mut beats = 0;
        {
            let mut sink = |event: Event, _: f64| got.push(event);
            let mut reader = Reader {
                events: &mut sink,
                heard: &mut || beats += 1,
                pending: Vec::new(),
                last: Instant::now(),
            };
            let text = "{\"begin\":\"k\"}\nstray {\n{\"failed\":\"why\"}\n{\"beg";
            for piece in text.as_bytes().chunks(5) {
                reader.write_all(piece).expect("never fails");
            }
        }
        assert_eq!(got, [Event::Begin("k".to_owned()), Event::Failed("why".to_owned())]);
        assert_eq!(beats, 2);
    }

    #[test]
    fn programs_are_found_or_refused() {
        assert!(locate("sh").is_ok());
        assert!(locate("/bin/sh").is_ok());
        let error = locate("no-such-workload-here").expect_err("refused");
        assert!(error.to_string().contains("not a workload"), "{error}");
        assert!(locate("./no-such-file-here").is_err());
    }

    #[test]
    fn only_the_tail_of_stderr_is_kept() {
        let mut tail = Tail::default();
        tail.write_all(&[b'x'; SAID_BYTES_MAX]).expect("never fails");
        tail.write_all(b"end\n").expect("never fails");
        assert!(tail.text().ends_with("xend"));
        assert_eq!(tail.0.len(), SAID_BYTES_MAX);
    }
}
