//! One boot of the guest, which runs a command and returns its output, files and exit status. In:
//! [`Guest`] (the same for all runs) and [`Request`]. Out: [`Outcome`]. Knows nothing of the
//! command.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::Progress;
use crate::bench::fingerprint;
use crate::cache::Cache;
use crate::fetch::Packages;
use crate::image::{self, Payload};
use crate::kvm;
use crate::qemu::{Acceleration, Qemu, Setup};
use crate::timing::Timing;
use crate::topology::{GuestNode, Topology};

/// The ports' names in the guest; `guest/init` uses the same.
const PORTS: [&str; 3] = ["tiercel.out", "tiercel.err", "tiercel.result"];

/// Bytes per read of a port.
const PIECE_BYTES: usize = 64 << 10;

/// Packages, base image and acceleration, ready to boot any number of times.
pub struct Guest {
    packages: Packages,
    acceleration: Acceleration,
    base: Vec<u8>,
}

/// What one boot does.
pub struct Request<'a> {
    /// Nodes of the guest.
    pub topology: &'a Topology,
    /// Files for the guest.
    pub payload: Payload,
    /// Commands for the guest's shell.
    pub command: &'a str,
    /// Environment of the command.
    pub environment: &'a [(String, String)],
    /// Time from its start after which the guest counts as hung.
    pub timeout: Duration,
    /// The folder for the files of the guest's `/out`; created if it is missing.
    pub out: Option<&'a Path>,
    /// If set, every access of the guest is timed, and its clock is the machine's.
    pub timing: Option<Timing<'a>>,
}

/// Sinks for the command's output while it runs.
pub struct Streams<'a> {
    /// Its standard output.
    pub stdout: &'a mut (dyn Write + Send),
    /// Its standard error.
    pub stderr: &'a mut (dyn Write + Send),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The command's exit status, as the shell reports it.
    pub status: i32,
    /// From the start of QEMU to its end.
    pub elapsed: Duration,
    /// Files that the command wrote to `/out`.
    pub files: usize,
    /// The timing plugin's statistics, JSON.
    pub timing: Option<String>,
}

impl Guest {
    /// Fetches missing packages, decides on the acceleration and makes the base image.
    pub fn prepare(
        cache: &Cache,
        acceleration: Acceleration,
        progress: &mut Progress<'_>,
    ) -> Result<Guest> {
        let packages = Packages::ensure(cache, progress)?;
        let acceleration = match acceleration {
            Acceleration::Auto if kvm::works(cache, &packages, progress) => Acceleration::Kvm,
            Acceleration::Auto => Acceleration::Tcg,
            chosen => chosen,
        };
        let base = image::base(&packages)?;
        Ok(Guest { packages, acceleration, base })
    }

    /// What executes the guest's instructions.
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// Boots, runs the command, powers off. A guest that exceeds the time limit is killed; the
    /// error has the console's last lines.
    pub fn run(&self, request: Request<'_>, streams: Streams<'_>) -> Result<Outcome> {
        let deadline = Instant::now() + request.timeout;
        self.run_until(request, streams, &|| deadline)
    }

    /// The same for a guest that reports progress: `deadline` may move while it runs, by
    /// [`Request::timeout`] each time.
    pub(crate) fn run_until(
        &self,
        request: Request<'_>,
        streams: Streams<'_>,
        deadline: &dyn Fn() -> Instant,
    ) -> Result<Outcome> {
        let Request { topology, mut payload, command, environment, timeout, out, timing } = request;
        payload.text("lab/command", 0o644, command);
        let mut environment = environment.to_vec();
        if timing.is_some() {
            environment.push(("LAB_TIMED".to_owned(), "1".to_owned()));
        }
        let image = self.image(payload, topology, &environment);
        let started = Instant::now();
        let mut setup = self.setup(topology, &image, &PORTS, false);
        if timing.is_some() {
            setup.timing = timing;
            setup.acceleration = Acceleration::Tcg;
        }
        let (mut qemu, ports) = Qemu::start(&setup)?;
        let [stdout, stderr, result] =
            <[UnixStream; 3]>::try_from(ports).expect("one stream per port");
        let archive = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
        let mut archive_file = archive.reopen().context("cannot open a temporary file")?;
        let ended = std::thread::scope(|scope| {
            scope.spawn(move || copy(stdout, streams.stdout));
            scope.spawn(move || copy(stderr, streams.stderr));
            scope.spawn(move || copy(result, &mut archive_file));
            let ended = loop {
                let until = deadline();
                match qemu.wait_until(Some(until)) {
                    Ok(None) if deadline() > until => {}
                    ended => break ended,
                }
            };
            // This also closes the ports, which ends the threads.
            qemu.kill();
            ended
        })?;
        let elapsed = started.elapsed();
        if ended.is_none() {
            bail!(
                "the guest did not finish in {} s and was killed; its console's last lines:\n{}",
                timeout.as_secs(),
                qemu.console_tail()
            );
        }
        let Some(status) = status(archive.path()) else {
            bail!(
                "the guest stopped before its command ended, after {:.1} s; its console's last \
                 lines:\n{}",
                elapsed.as_secs_f64(),
                qemu.console_tail()
            );
        };
        let files = out.map_or(Ok(0), |out| unpack(archive.path(), out))?;
        Ok(Outcome { status, elapsed, files, timing: qemu.stats() })
    }

    /// Names kernel and base image: guests of equal fingerprint behave alike.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        let kernel = self.packages.kernel()?;
        let name = kernel.file_name().unwrap_or_default().to_string_lossy();
        Ok(format!("{name} {}", fingerprint(&self.base)))
    }

    /// Boots into a shell on the caller's terminal.
    pub fn shell(
        &self,
        topology: &Topology,
        payload: Payload,
        environment: &[(String, String)],
    ) -> Result<()> {
        let mut environment = environment.to_vec();
        environment.push(("LAB_SHELL".to_owned(), "1".to_owned()));
        let image = self.image(payload, topology, &environment);
        let (mut qemu, _) = Qemu::start(&self.setup(topology, &image, &[], true))?;
        let ended = qemu.wait_until(None)?.expect("there is no deadline");
        ensure!(ended.success(), "QEMU ended with {ended}\n{}", qemu.console_tail());
        Ok(())
    }

    fn image(
        &self,
        payload: Payload,
        topology: &Topology,
        environment: &[(String, String)],
    ) -> Vec<u8> {
        let mut environment = environment.to_vec();
        let nodes = |with: fn(&GuestNode) -> bool| {
            list(topology.nodes.iter().enumerate().filter(|(_, n)| with(n)).map(|(i, _)| i))
        };
        environment.push(("LAB_MACHINE".to_owned(), topology.machine.clone()));
        environment.push(("LAB_MEMORY_NODES".to_owned(), nodes(|node| node.memory_bytes > 0)));
        environment.push(("LAB_CPU_NODES".to_owned(), nodes(|node| node.cpus > 0)));
        let mut image = self.base.clone();
        image.extend(payload.finish(&environment));
        image
    }

    fn setup<'a>(
        &'a self,
        topology: &'a Topology,
        image: &'a [u8],
        ports: &'a [&'a str],
        interactive: bool,
    ) -> Setup<'a> {
        let Guest { packages, acceleration, .. } = self;
        let timing = None;
        Setup { packages, topology, acceleration: *acceleration, image, ports, interactive, timing }
    }
}

/// Ascending numbers in the kernel's list format: `0-3,8`.
fn list(numbers: impl Iterator<Item = usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// Copies a port until it closes. If a sink fails, the rest is discarded: a reader must not block
/// the guest.
fn copy(mut port: UnixStream, sink: &mut (dyn Write + Send)) {
    let mut piece = vec![0; PIECE_BYTES];
    let mut open = true;
    while let Ok(count @ 1..) = port.read(&mut piece) {
        open = open && sink.write_all(&piece[..count]).and_then(|()| sink.flush()).is_ok();
    }
}

fn status(archive: &Path) -> Option<i32> {
    let output = Command::new("tar").arg("-xOf").arg(archive).arg("lab/status").output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Unpacks the guest's `/out` and counts its files.
fn unpack(archive: &Path, out: &Path) -> Result<usize> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let errors = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    let listing = Command::new("tar")
        .args(["--no-same-owner", "--strip-components=1", "-xvf"])
        .arg(archive)
        .arg("-C")
        .arg(out)
        .arg("out")
        .stderr(errors)
        .output()
        .context("cannot start tar")?;
    ensure!(
        listing.status.success(),
        "cannot unpack the guest's files into {}: {}",
        out.display(),
        listing.status
    );
    let names = String::from_utf8_lossy(&listing.stdout).into_owned();
    Ok(names.lines().filter(|name| !name.ends_with('/')).map(PathBuf::from).count())
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn lists_have_the_kernels_format() {
        assert_eq!(list([0, 1, 2, 5, 7, 8].into_iter()), "0-2,5,7-8");
        assert_eq!(list([].into_iter()), "");
    }
}
