//! One QEMU process.
//! In: packages, a topology, an image. Out: the running process, its console and ports.
//! Knows nothing of what the guest does.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::fetch::Packages;
use crate::timing::{self, Timing};
use crate::topology::Topology;

/// Lines of the console that are shown when a guest fails; a crashed kernel prints about 50.
const CONSOLE_LINES: usize = 60;

/// QEMU opens its ports within milliseconds; a loaded host may take seconds.
const START_LIMIT: Duration = Duration::from_secs(300);

/// How often the start checks that QEMU still runs.
const START_STEP: Duration = Duration::from_millis(50);

/// The plugin's files, next to the console's.
const STATS: &str = "stats.json";
const PLUGIN_CONFIG: &str = "plugin.json";
const SAMPLES: &str = "samples";

/// Options that make boots repeatable: no random addresses or numbers, and a real-time clock that
/// follows the guest's. Devices answer at once on the requesting virtual CPU, not when the host
/// gets to it (`ioeventfd=off` at the ports).
const REPEATABLE: [&str; 4] = ["-seed", "1", "-rtc", "base=2026-01-01T00:00:00,clock=vm"];
const REPEATABLE_LINE: &str = " norandmaps";

/// Quiet, quick, repeatable; on a panic the guest reboots at once, which ends QEMU. The root file
/// system is a ramfs, whose OS pages are not migrated: the default tmpfs would be demoted to slow
/// nodes, and policies that demote would gain 20 MiB of fast memory.
const KERNEL_LINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic mitigations=off \
                           nokaslr random.trust_cpu=on tsc=reliable rootfstype=ramfs";

/// How guest instructions are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acceleration {
    /// KVM if a guest boots with it, else TCG.
    #[default]
    Auto,
    /// Translation, on any host.
    Tcg,
    /// The host's virtualisation.
    Kvm,
}

/// The set-up of a guest.
pub(crate) struct Setup<'a> {
    pub packages: &'a Packages,
    pub topology: &'a Topology,
    /// Never [`Acceleration::Auto`], which the caller resolves.
    pub acceleration: Acceleration,
    /// The initramfs.
    pub image: &'a [u8],
    /// Names of virtio-serial ports, in order.
    pub ports: &'a [&'a str],
    /// Whether the console is the caller's terminal.
    pub interactive: bool,
    /// If set, every access is timed; needs [`Acceleration::Tcg`].
    pub timing: Option<Timing<'a>>,
}

/// A running QEMU; killed when dropped.
pub(crate) struct Qemu {
    child: Child,
    scratch: tempfile::TempDir,
}

impl Qemu {
    /// Starts QEMU; returns when it has opened its ports, in the order of [`Setup::ports`].
    pub(crate) fn start(setup: &Setup<'_>) -> Result<(Qemu, Vec<UnixStream>)> {
        let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
        let dir = scratch.path();
        let image = dir.join("image");
        fs::write(&image, setup.image)
            .with_context(|| format!("cannot write the guest's image {}", image.display()))?;
        let listeners = listeners(dir, setup.ports)?;
        let mut command = setup.packages.qemu()?;
        command.args(arguments(setup, dir)?).arg("-initrd").arg(&image);
        let log = fs::File::create(dir.join("qemu.log")).context("cannot make a log file")?;
        if !setup.interactive {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        let child = command.stderr(log).spawn().context("cannot start QEMU")?;
        let mut qemu = Qemu { child, scratch };
        let streams = qemu.accept(&listeners)?;
        Ok((qemu, streams))
    }

    /// Waits for the process to end; `None` if it still runs at the deadline.
    pub(crate) fn wait_until(&mut self, deadline: Option<Instant>) -> Result<Option<ExitStatus>> {
        let pid = Pid::from_child(&self.child);
        let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch QEMU")?;
        loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for QEMU")? {
                return Ok(Some(status));
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for QEMU"),
            }
        }
    }

    /// The timing plugin's statistics, JSON; `None` before the guest has ended normally.
    pub(crate) fn stats(&self) -> Option<String> {
        fs::read_to_string(self.scratch.path().join(STATS)).ok()
    }

    /// Kills the guest.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; both calls then do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The last lines of QEMU's messages and of the guest's console.
    pub(crate) fn console_tail(&self) -> String {
        let read = |name: &str| {
            let bytes = fs::read(self.scratch.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\r', "")
        };
        let text = read("qemu.log") + &read("console.log");
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            return "    (the console is empty)".to_owned();
        }
        let shown = &lines[lines.len().saturating_sub(CONSOLE_LINES)..];
        shown.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
    }

    fn accept(&mut self, listeners: &[UnixListener]) -> Result<Vec<UnixStream>> {
        let deadline = Instant::now() + START_LIMIT;
        let mut streams = Vec::new();
        for listener in listeners {
            loop {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(false).context("cannot set up a port")?;
                    streams.push(stream);
                    break;
                }
                if let Some(status) = self.child.try_wait().context("cannot wait for QEMU")? {
                    bail!("QEMU did not start: {status}\n{}", self.console_tail());
                }
                if Instant::now() > deadline {
                    bail!("QEMU did not open its ports in {} s", START_LIMIT.as_secs());
                }
                let step = Timespec::try_from(START_STEP).expect("a short time");
                let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&step));
            }
        }
        Ok(streams)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

fn listeners(dir: &Path, ports: &[&str]) -> Result<Vec<UnixListener>> {
    ports
        .iter()
        .map(|name| {
            let path = port_path(dir, name);
            let listener = UnixListener::bind(&path)
                .with_context(|| format!("cannot listen on {}", path.display()))?;
            listener.set_nonblocking(true).context("cannot set up a port")?;
            Ok(listener)
        })
        .collect()
}

fn port_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.port"))
}

fn arguments(setup: &Setup<'_>, dir: &Path) -> Result<Vec<String>> {
    let text = "-M q35,hmat=on -nodefaults -no-user-config -display none -no-reboot";
    let mut args: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let (accel, cpu) = match setup.acceleration {
        Acceleration::Kvm => ("kvm", "host"),
        Acceleration::Auto | Acceleration::Tcg => ("tcg,thread=multi", "max"),
    };
    let mut add = |key: &str, value: String| args.extend([key.to_owned(), value]);
    add("-accel", accel.to_owned());
    add("-cpu", cpu.to_owned());
    add("-kernel", setup.packages.kernel()?.display().to_string());
    let line = if setup.timing.is_some() { REPEATABLE_LINE } else { "" };
    add("-append", format!("{KERNEL_LINE}{line}"));
    let console = match setup.interactive {
        true => "stdio,id=console,signal=off".to_owned(),
        false => format!("file,id=console,path={}", dir.join("console.log").display()),
    };
    add("-chardev", console);
    add("-serial", "chardev:console".to_owned());
    if !setup.ports.is_empty() {
        let at_once = if setup.timing.is_some() { ",ioeventfd=off" } else { "" };
        add("-device", format!("virtio-serial-pci{at_once}"));
    }
    for (i, name) in setup.ports.iter().enumerate() {
        let path = port_path(dir, name);
        add("-chardev", format!("socket,id=port{i},path={}", path.display()));
        add("-device", format!("virtserialport,chardev=port{i},name={name}"));
    }
    if let Some(timing) = &setup.timing {
        timed(timing, setup.topology, dir, &mut add)?;
    }
    args.extend(setup.topology.qemu_args());
    if setup.timing.is_some() {
        args.extend(REPEATABLE.map(str::to_owned));
    }
    Ok(args)
}

/// The plugin, and the device through which the guest sees its samples.
fn timed(
    timing: &Timing<'_>,
    topology: &Topology,
    dir: &Path,
    add: &mut dyn FnMut(&str, String),
) -> Result<()> {
    let (config, area) = (dir.join(PLUGIN_CONFIG), dir.join(SAMPLES));
    fs::write(&config, timing::config(timing, topology, &dir.join(STATS), &area))
        .with_context(|| format!("cannot write {}", config.display()))?;
    fs::File::create(&area)
        .and_then(|file| file.set_len(timing::SAMPLE_AREA_BYTES))
        .with_context(|| format!("cannot make {}", area.display()))?;
    let bytes = timing::SAMPLE_AREA_BYTES;
    let backend = "memory-backend-file,id=samples,share=on";
    add("-object", format!("{backend},size={bytes},mem-path={}", area.display()));
    add("-device", "ivshmem-plain,memdev=samples".to_owned());
    add("-plugin", format!("file={},config={}", timing.plugin.display(), config.display()));
    Ok(())
}
