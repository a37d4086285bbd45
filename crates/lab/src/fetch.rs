//! Fetches QEMU, a kernel and busybox from the distribution's packages into the cache. In: the
//! system's own source lists, the network. Out: [`Packages`], an unpacked private tree. Knows
//! nothing of guests. Installs nothing and needs no root: apt gets a configuration of its own, and
//! the packages are unpacked, never configured.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::Progress;
use crate::cache::Cache;
use crate::sources::{self, Form, Mirror};

/// Version of the package list: raised when a package is added below, so that caches are fetched
/// again.
const RECIPE: &str = "2\n";

/// The emulator with all its dependencies, so that it runs on its own C library.
const WITH_DEPENDENCIES: [&str; 1] = ["qemu-system-x86"];

/// Single files are taken from these; their dependencies are not needed.
const ALONE: [&str; 3] = ["busybox-static", "numactl", "libnuma1"];

/// Depends on the newest kernel package.
const KERNEL_META: &str = "linux-image-cloud-amd64";

/// The release whose own QEMU (7.2) and kernel (6.1) are too old; backports are used for it.
const NEEDS_BACKPORTS: &str = "bookworm";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// 70 MB of packages, 200 MB unpacked, 60 MB of package lists, and as much again as a margin.
const NEEDED_BYTES: u64 = 700 << 20;

/// How often a long step reports progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Lines of a failed tool's output that are shown.
const SHOWN_LINES: usize = 4;

/// The unpacked tree.
#[derive(Clone, Debug)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// The packages, fetched first if the cache does not hold them. An interrupted fetch continues
    /// where it stopped; concurrent fetches wait for each other.
    pub fn ensure(cache: &Cache, progress: &mut Progress<'_>) -> Result<Packages> {
        let root = cache.path("root");
        let lock = cache.lock()?;
        if fs::read_to_string(stamp(&root)).is_ok_and(|text| text == RECIPE) {
            return Ok(Packages { root });
        }
        progress("lab: fetching QEMU and a kernel (about 70 MB, once)");
        fetch(cache, &root, progress).context("the lab's packages could not be fetched")?;
        drop(lock);
        Ok(Packages { root })
    }

    /// Starts QEMU with the libraries that it was built for.
    pub(crate) fn qemu(&self) -> Result<Command> {
        let library_path = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"]
            .map(|dir| self.root.join(dir).display().to_string())
            .join(":");
        // A guest ends with the process that started it, however that process ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(self.first(&[
            "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        ])?);
        command.arg("--library-path").arg(library_path);
        command.arg(self.first(&["usr/bin/qemu-system-x86_64"])?);
        for firmware in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.root.join(firmware));
        }
        command.env("QEMU_MODULE_DIR", self.root.join("usr/lib/x86_64-linux-gnu/qemu"));
        command.env_remove("LD_PRELOAD");
        Ok(command)
    }

    /// The compressed kernel image.
    pub(crate) fn kernel(&self) -> Result<PathBuf> {
        let boot = self.root.join("boot");
        fs::read_dir(&boot)
            .with_context(|| format!("cannot read {}", boot.display()))?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .find(|path| {
                path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz"))
            })
            .ok_or_else(|| self.damaged("boot/vmlinuz-*"))
    }

    /// The static shell and its tools.
    pub(crate) fn busybox(&self) -> Result<PathBuf> {
        self.first(&["usr/bin/busybox", "bin/busybox"])
    }

    /// `numactl`, and the library that it needs beyond the C library.
    pub(crate) fn numactl(&self) -> Result<[PathBuf; 2]> {
        Ok([
            self.first(&["usr/bin/numactl"])?,
            self.first(&[
                "usr/lib/x86_64-linux-gnu/libnuma.so.1",
                "lib/x86_64-linux-gnu/libnuma.so.1",
            ])?,
        ])
    }

    fn first(&self, candidates: &[&str]) -> Result<PathBuf> {
        candidates
            .iter()
            .map(|relative| self.root.join(relative))
            .find(|path| path.exists())
            .ok_or_else(|| self.damaged(candidates[0]))
    }

    fn damaged(&self, missing: &str) -> anyhow::Error {
        anyhow!("{} lacks {missing}; delete that directory and try again", self.root.display())
    }
}

fn stamp(root: &Path) -> PathBuf {
    root.join("complete")
}

fn fetch(cache: &Cache, root: &Path, progress: &mut Progress<'_>) -> Result<()> {
    let (mirror, codename) = system_mirror()?;
    let free = cache.free_bytes()?;
    ensure!(
        free >= NEEDED_BYTES,
        "{} has {} MiB free and {} MiB are needed; free some space or set XDG_CACHE_HOME",
        cache.path("").display(),
        free >> 20,
        NEEDED_BYTES >> 20
    );
    let apt = Apt::configure(cache, &mirror, &codename)?;
    apt.run("apt-get", &["update", "-q"], "package lists", progress)?;
    let mut install = vec!["install", "-q", "-y", "--download-only", "--no-install-recommends"];
    install.extend(WITH_DEPENDENCIES);
    apt.run("apt-get", &install, "QEMU and its libraries", progress)?;
    let kernel = apt.kernel()?;
    let mut download = vec!["download", "-q", kernel.as_str()];
    download.extend(ALONE);
    apt.run("apt-get", &download, "kernel and tools", progress)?;
    unpack(&apt.archives, root, progress)?;
    // Half of the cache is needed only for fetching; if another process has removed it, nothing is
    // lost.
    let _ = fs::remove_dir_all(cache.path("apt"));
    Ok(())
}

/// This system's Debian mirror and release.
fn system_mirror() -> Result<(Mirror, String)> {
    ensure!(
        std::env::consts::ARCH == "x86_64",
        "the lab's guest is x86-64, and so far its host must be, too"
    );
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let codename = field("VERSION_CODENAME=");
    ensure!(
        field("ID=") == "debian" && !codename.is_empty(),
        "the lab takes QEMU and its kernel from Debian's packages, and this is {}; \
         run it in a Debian 12 or 13 container",
        field("PRETTY_NAME=")
    );
    ensure!(
        Path::new(KEYRING).exists(),
        "{KEYRING} is missing; install the package debian-archive-keyring"
    );
    let files = source_files();
    let texts = files.iter().map(|(form, text)| (*form, text.as_str()));
    let mirror = sources::debian_mirror(texts, &codename).with_context(|| {
        format!("/etc/apt names no Debian mirror for {codename} (component main, Debian's keyring)")
    })?;
    Ok((mirror, codename))
}

fn source_files() -> Vec<(Form, String)> {
    let mut paths = vec![PathBuf::from("/etc/apt/sources.list")];
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
    paths.extend(parts.filter_map(|entry| entry.ok().map(|e| e.path())));
    paths.sort();
    let form = |path: &Path| match path.extension()?.to_str()? {
        "sources" => Some(Form::Deb822),
        "list" => Some(Form::OneLine),
        _ => None,
    };
    paths
        .into_iter()
        .filter_map(|path| Some((form(&path)?, fs::read_to_string(&path).ok()?)))
        .collect()
}

/// apt with its own lists, cache and (empty) record of installed packages.
struct Apt {
    directory: PathBuf,
    archives: PathBuf,
    target: String,
}

impl Apt {
    fn configure(cache: &Cache, mirror: &Mirror, codename: &str) -> Result<Apt> {
        let directory = cache.path("apt");
        for sub in ["lists/partial", "archives/partial", "sources"] {
            let path = directory.join(sub);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let Mirror { uri, suite } = mirror;
        let backports = codename == NEEDS_BACKPORTS;
        let (suites, target) = match backports {
            true => (format!("{suite} {suite}-backports"), format!("{suite}-backports")),
            false => (suite.clone(), suite.clone()),
        };
        let source = format!(
            "Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nArchitectures: amd64\n\
             Signed-By: {KEYRING}\n"
        );
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("sources/debian.sources", &source)?;
        write("status", "")?;
        write("apt.conf", &configuration(&directory))?;
        Ok(Apt { archives: directory.join("archives"), directory, target })
    }

    fn command(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command.arg("-c").arg(self.directory.join("apt.conf"));
        command.arg("-t").arg(&self.target).current_dir(&self.archives);
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    }

    /// Runs a tool of apt, and counts the files that it fetches.
    fn run(
        &self,
        tool: &str,
        args: &[&str],
        what: &str,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let log = self.directory.join("log");
        let errors =
            fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = self
            .command(tool)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {tool}"))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let (mut fetched, mut said) = (0, Instant::now());
        for line in BufReader::new(stdout).lines() {
            fetched += usize::from(line.is_ok_and(|l| l.starts_with("Get:")));
            if said.elapsed() >= PROGRESS_EVERY {
                progress(&format!("lab: {what}: {fetched} files fetched"));
                said = Instant::now();
            }
        }
        let status = child.wait().with_context(|| format!("cannot wait for {tool}"))?;
        if status.success() {
            return Ok(());
        }
        let errors = fs::read_to_string(&log).unwrap_or_default();
        bail!("{tool} {}: {status}\n{}", args[0], explain(&errors))
    }

    /// The package that holds the newest kernel.
    fn kernel(&self) -> Result<String> {
        let output = self.command("apt-cache").args(["depends", KERNEL_META]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"))
            .map(str::to_owned)
            .with_context(|| format!("{KERNEL_META} is not in the suite {}", self.target))
    }
}

/// Read after the system's own configuration, so that its proxies apply and its hooks do not.
fn configuration(directory: &Path) -> String {
    let dir = directory.display();
    format!(
        "Dir::State \"{dir}\";\nDir::State::lists \"{dir}/lists\";\n\
         Dir::State::status \"{dir}/status\";\nDir::Cache \"{dir}\";\n\
         Dir::Cache::archives \"{dir}/archives\";\nDir::Etc::sourcelist \"/dev/null\";\n\
         Dir::Etc::sourceparts \"{dir}/sources\";\nDir::Etc::preferences \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\nDir::Log \"{dir}\";\n\
         APT::Sandbox::User \"\";\nAPT::Architecture \"amd64\";\n\
         Acquire::Retries \"3\";\nAcquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled \"false\";\n\
         #clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n\
         #clear APT::Update::Post-Invoke-Success;\n#clear DPkg::Post-Invoke;\n\
         #clear DPkg::Pre-Invoke;\n#clear DPkg::Pre-Install-Pkgs;\n"
    )
}

/// apt's last errors, each with its remedy.
fn explain(errors: &str) -> String {
    let remedies = [
        ("No space left", "the disk is full: free some space or set XDG_CACHE_HOME"),
        ("Hash Sum mismatch", "a download was damaged or the mirror is changing: try again"),
        ("NO_PUBKEY", "the mirror is not signed by Debian, or debian-archive-keyring is too old"),
        ("Could not resolve", "no network, or the mirror's name is unknown: check the network"),
        ("Temporary failure", "no network, or the mirror's name is unknown: check the network"),
        ("onnect", "the mirror does not answer: check the network and any proxy"),
        ("404", "the mirror no longer holds this release: check /etc/apt"),
    ];
    let shown: Vec<&str> = errors
        .lines()
        .filter(|line| line.starts_with("E:") || line.starts_with("Err:"))
        .take(SHOWN_LINES)
        .collect();
    let remedy = remedies.iter().find(|(sign, _)| errors.contains(sign)).map_or("", |(_, r)| r);
    [shown.join("\n").as_str(), remedy].join("\n").trim().to_owned()
}

/// Unpacks every package into a new tree, which replaces the old one only when it is complete.
fn unpack(archives: &Path, root: &Path, progress: &mut Progress<'_>) -> Result<()> {
    let mut packages: Vec<PathBuf> = fs::read_dir(archives)?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "deb"))
        .collect();
    packages.sort();
    let staging = root.with_extension("new");
    remove(&staging)?;
    fs::create_dir_all(&staging)?;
    let mut said = Instant::now();
    for (done, package) in packages.iter().enumerate() {
        if said.elapsed() >= PROGRESS_EVERY {
            progress(&format!("lab: unpacking, {done} of {} packages", packages.len()));
            said = Instant::now();
        }
        let output = Command::new("dpkg")
            .args(["-x".as_ref(), package.as_os_str(), staging.as_os_str()])
            .output()
            .context("cannot start dpkg")?;
        if !output.status.success() {
            // Removed, because a damaged file would fail every time.
            let _ = fs::remove_file(package);
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("cannot unpack {}: {}\n{}", package.display(), errors.trim(), explain(&errors));
        }
    }
    fs::write(stamp(&staging), RECIPE)?;
    remove(root)?;
    fs::rename(&staging, root)
        .with_context(|| format!("cannot put {} in its place", root.display()))
}

fn remove(tree: &Path) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", tree.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_a_remedy() {
        let text = "W: whatever\nE: Failed to fetch http://m.example/x  Hash Sum mismatch\n";
        let text = explain(text);
        assert!(text.starts_with("E: Failed to fetch"), "{text}");
        assert!(text.ends_with("try again"), "{text}");
        assert_eq!(explain(""), "");
    }

    #[test]
    fn the_systems_hooks_do_not_run() {
        let text = configuration(Path::new("/c"));
        for hook in ["APT::Update::Post-Invoke;", "APT::Update::Post-Invoke-Success;"] {
            assert!(text.contains(&format!("#clear {hook}")), "{text}");
        }
        assert!(text.contains("Dir::State::status \"/c/status\""));
    }

    #[test]
    fn a_damaged_package_is_named_and_removed_and_the_old_tree_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let (archives, root) = (dir.path().join("archives"), dir.path().join("root"));
        fs::create_dir_all(&archives).expect("made");
        fs::create_dir_all(&root).expect("made");
        fs::write(root.join("old"), "kept").expect("written");
        let package = archives.join("broken.deb");
        fs::write(&package, "not a package").expect("written");
        let error = unpack(&archives, &root, &mut |_| {}).expect_err("it is damaged");
        assert!(error.to_string().contains("broken.deb"), "{error}");
        assert!(!package.exists());
        assert!(root.join("old").exists());
    }
}
