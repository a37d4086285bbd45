//! The knobs in a folder of their own, and the texts of the kernel. Hint faults themselves need a
//! kernel with several nodes: `lab/tests/hint.sh`.

use std::fs;

use super::guard::Guard;
use super::knobs::Place;
use super::passes::scans;
use super::*;

const SCAN: [(&str, &str); 4] = [
    ("scan_delay_ms", "1000"),
    ("scan_period_max_ms", "60000"),
    ("scan_period_min_ms", "1000"),
    ("scan_size_mb", "256"),
];

/// Knobs in a folder that is removed at the end.
struct World {
    folder: std::path::PathBuf,
}

impl World {
    fn new(name: &str, switch: &str) -> World {
        let folder = std::env::temp_dir().join(format!("hint-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("scan")).expect("a folder");
        fs::write(folder.join("switch"), format!("{switch}\n")).expect("written");
        for (name, value) in SCAN {
            fs::write(folder.join("scan").join(name), format!("{value}\n")).expect("written");
        }
        World { folder }
    }

    fn place(&self) -> Place {
        Place::below(&self.folder)
    }

    /// The switch, and the knobs in the order of [`SCAN`].
    fn values(&self) -> Vec<String> {
        let read = |path| fs::read_to_string(self.folder.join(path)).expect("there");
        let scan = SCAN.iter().map(|(name, _)| read(format!("scan/{name}")));
        let all = [read("switch".to_owned())].into_iter().chain(scan);
        all.map(|text| text.trim().to_owned()).collect()
    }

    fn is_noted(&self) -> bool {
        self.folder.join("found").exists()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

const FOUND: [&str; 5] = ["0", "1000", "60000", "1000", "256"];

#[test]
fn knobs_are_set_and_put_back() {
    let world = World::new("set", "0");
    let knobs = Knobs::set(&world.place(), 200).expect("writable");
    assert_eq!(world.values(), ["1", "200", "200", "200", "256"]);
    assert!(world.is_noted());
    assert!(knobs.state().contains("200 ms"));
    drop(knobs);
    assert_eq!(world.values(), FOUND);
    assert!(!world.is_noted());
}

#[test]
fn the_next_start_puts_back_what_a_kill_left() {
    let world = World::new("killed", "0");
    std::mem::forget(Knobs::set(&world.place(), 200).expect("writable"));
    knobs::restore(&world.place());
    assert_eq!(world.values()[0], "1", "its writer lives");
    let found = world.folder.join("found");
    let text = fs::read_to_string(&found).expect("noted");
    // The same number, started at another time: another process.
    let own = std::process::id();
    let (_, rest) = text.split_once('\n').expect("lines");
    fs::write(&found, format!("{own} 1\n{rest}")).expect("written");
    knobs::restore(&world.place());
    assert_eq!(world.values(), FOUND);
    assert!(!world.is_noted());
}

#[test]
fn a_child_puts_the_knobs_back_after_a_kill() {
    let world = World::new("guarded", "0");
    let changed = || std::mem::forget(Knobs::set(&world.place(), 200).expect("writable"));
    changed();
    let note = world.folder.join("found");
    let text = fs::read_to_string(&note).expect("noted");
    let (writer, lines) = text.split_once('\n').expect("lines");
    let line = |line: &str| {
        let (path, value) = line.rsplit_once(' ').expect("two words");
        (path.into(), value.to_owned())
    };
    let found: Vec<_> = lines.lines().map(line).collect();
    let guard = |writer| Guard::start(&note, writer, &found).expect("a shell");
    drop(guard(writer));
    assert_eq!(world.values()[1], "200", "all is well");
    guard("1 1").abandon();
    assert_eq!(world.values()[1], "200", "the note is another's");
    guard(writer).abandon();
    assert_eq!(world.values(), FOUND);
    assert!(!world.is_noted());
}

#[test]
fn a_second_sampler_leaves_the_knobs_of_the_first() {
    let world = World::new("second", "0");
    let first = Knobs::set(&world.place(), 200).expect("writable");
    let second = Knobs::set(&world.place(), 500).expect("it scans");
    assert_eq!(world.values()[1], "200");
    drop(second);
    assert_eq!(world.values()[0], "1");
    drop(first);
    assert_eq!(world.values(), FOUND);
}

#[test]
fn what_cannot_be_set_is_refused_with_the_remedy() {
    let world = World::new("refused", "2");
    // What was found cannot be noted, so nothing may change.
    fs::create_dir(world.folder.join("found")).expect("a folder in its place");
    let said = Knobs::set(&world.place(), 200).expect_err("it is 2").to_string();
    assert!(said.contains("is 2") && said.contains("sysctl kernel.numa_balancing=1"), "{said}");
    assert_eq!(world.values()[0], "2");
    fs::remove_file(world.folder.join("switch")).expect("there");
    let said = Knobs::set(&world.place(), 200).expect_err("no such kernel").to_string();
    assert!(said.contains("CONFIG_NUMA_BALANCING"), "{said}");
}

#[test]
fn a_note_reaches_no_other_file() {
    let world = World::new("evil", "0");
    let other = world.folder.join("other");
    fs::write(&other, "as it was").expect("written");
    fs::write(world.folder.join("found"), format!("1 0\n{} gone\n", other.display()))
        .expect("written");
    knobs::restore(&world.place());
    assert_eq!(fs::read_to_string(&other).expect("there"), "as it was");
}

#[test]
fn the_scan_of_a_process_is_read() {
    let text = "bash (7, #threads: 1)\n---\nse.exec_start  :  1.5\nmm->numa_scan_seq     :    12\n";
    assert_eq!(scans(text), Some(12));
    assert_eq!(scans("se.exec_start : 1\n"), None);
}

#[test]
fn a_refusal_names_level_and_remedy() {
    let error = SamplerError::Permission { what: String::new(), remedy: String::new() };
    let said = refusal(error, Some(3)).to_string();
    assert!(said.contains("paranoid = 3") && said.contains("paranoid=2"), "{said}");
}

#[test]
fn rings_are_as_large_as_may_be_locked() {
    let limit = || SamplerError::Limit { what: String::new(), remedy: String::new() };
    let allowed =
        |most: usize| move |bytes: usize| if bytes > most { Err(limit()) } else { Ok(bytes) };
    assert_eq!(largest(64, 4, allowed(100)).ok(), Some(64));
    assert_eq!(largest(64, 4, allowed(17)).ok(), Some(16));
    assert_eq!(largest(64, 3, allowed(3)).ok(), Some(3));
    assert!(matches!(largest(64, 4, allowed(3)), Err(SamplerError::Limit { .. })));
    let gone = |_| Err::<usize, _>(SamplerError::Vanished { pid: 7 });
    assert!(matches!(largest(64, 4, gone), Err(SamplerError::Vanished { .. })), "not tried again");
}
