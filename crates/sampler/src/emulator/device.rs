//! The emulator's device: shared memory on the guest's PCI bus, used without a driver.
//! In: the folders of sysfs. Out: the device's memory as a file to map.
//! Knows nothing of what is in it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tiercel_wire::emulator::AREA_BYTES;

/// QEMU's `ivshmem-plain`: Red Hat's vendor number and its device's.
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";
/// Most devices that are examined; the lab's guests have a handful.
const DEVICES_MAX: usize = 1024;

/// Folders of devices that may be the emulator's, in the order of their addresses.
pub fn candidates(sys: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(sys.join("bus/pci/devices")) else { return Vec::new() };
    let is = |folder: &Path, name: &str, number: &str| {
        fs::read_to_string(folder.join(name)).is_ok_and(|text| text.trim() == number)
    };
    let folders = entries.take(DEVICES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> =
        folders.filter(|f| is(f, "vendor", VENDOR) && is(f, "device", DEVICE)).collect();
    found.sort();
    found
}

/// Enables the device and opens its memory.
///
/// # Errors
/// The kernel's error; or the memory's size is not the area's.
pub fn open(folder: &Path) -> io::Result<File> {
    let switch = folder.join("enable");
    if fs::read_to_string(&switch)?.trim() == "0" {
        fs::write(&switch, "1")?;
    }
    let memory = File::options().read(true).write(true).open(folder.join("resource2"))?;
    let bytes = memory.metadata()?.len();
    if bytes < AREA_BYTES as u64 {
        return Err(io::Error::other(format!("its memory has {bytes} bytes, not {AREA_BYTES}")));
    }
    Ok(memory)
}
