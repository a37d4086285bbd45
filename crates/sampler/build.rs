//! Compiles bpf/sample.bpf.c with clang, for the optional feature `bpf`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    const SOURCE: &str = "../../bpf/sample.bpf.c";
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("sample.bpf.o");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let (define, headers) = match arch.as_str() {
        "x86_64" => ("x86", "x86_64-linux-gnu"),
        "aarch64" => ("arm64", "aarch64-linux-gnu"),
        other => panic!("the bpf sampler does not know processor {other}; build without `bpf`"),
    };
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-std=gnu17", "-g", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-D__TARGET_ARCH_{define}"))
        .arg(format!("-I/usr/include/{headers}"))
        .args(["-c", SOURCE, "-o"])
        .arg(&out)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} failed on {SOURCE}: {status}"),
        Err(error) => {
            panic!("{clang} is needed for feature `bpf` (Debian: clang, or set CLANG): {error}")
        }
    }
}
