//! `./x install`: what is installed is used as its users do, and removed without a trace.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

mod ran;
use ran::{checked, files, installed, text};

/// Links the runtime, and says whether an object came from it.
const PROGRAM: &str = r#"
#include <tiercel.h>
#include <stdio.h>
int main(void) {
    struct tiercel_traits traits = {.space = TIERCEL_LARGE_CAPACITY};
    char *object = tiercel_alloc(1 << 20, &traits);
    puts(object ? "allocated" : "refused");
    tiercel_free(object);
    return !object;
}
"#;

struct Installed {
    folder: tempfile::TempDir,
}

impl Installed {
    fn new() -> Installed {
        let installed = Installed { folder: tempfile::tempdir().unwrap() };
        installed.xtask("install");
        installed
    }

    fn xtask(&self, verb: &str) -> Output {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        xtask.args([verb, "--debug", "--destdir"]).arg(self.folder.path());
        checked(&mut xtask)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("usr/local").join(name)
    }

    fn tiercel(&self) -> Command {
        installed(self.path("bin/tiercel"))
    }
}

#[test]
fn what_is_installed_is_used_and_removed_without_a_trace() {
    let installed = Installed::new();
    used_by_people(&installed);
    linked_by_programs(&installed);
    loaded_as_a_module(&installed);
    // A file that is not ours stays, with its folder.
    let foreign = installed.path("share/man/man1/other.1");
    fs::write(&foreign, "").unwrap();
    installed.xtask("uninstall");
    assert_eq!(files(installed.folder.path()), [foreign]);
    assert!(!installed.path("bin").exists() && !installed.path("lib").exists());
    let mut again = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let again = again.arg("uninstall").arg("--destdir").arg(installed.folder.path()).output();
    let said = String::from_utf8_lossy(&again.unwrap().stderr).into_owned();
    assert!(said.contains("nothing is installed below"), "{said}");
}

fn used_by_people(installed: &Installed) {
    let preload = ["run", "--quiet", "--", "sh", "-c", "echo $LD_PRELOAD"];
    let preload = text(&checked(installed.tiercel().args(preload)));
    let own = installed.path("lib/tiercel/libtiercel.so").canonicalize().unwrap();
    assert_eq!(preload.trim(), own.to_str().unwrap());
    checked(
        installed
            .tiercel()
            .args(["config", "--check"])
            .arg(installed.path("share/tiercel/tiercel.toml")),
    );
    let page = fs::read_to_string(installed.path("share/man/man1/tiercel-lab-compare.1")).unwrap();
    assert!(page.contains(".TH"), "{page}");
    let unit = fs::read_to_string(installed.path("lib/systemd/system/tiercel.service")).unwrap();
    let command = "ExecStart=/usr/local/bin/tiercel daemon --all-users --config \
                   /usr/local/share/tiercel/tiercel.toml\n";
    assert!(unit.contains(command), "{unit}");
    let script = installed.path("share/bash-completion/completions/tiercel");
    let complete = "COMP_WORDS=(tiercel whatif --machine spr-c); COMP_CWORD=3; \
                    _tiercel tiercel spr-c --machine; echo \"${COMPREPLY[@]}\"";
    let complete = format!(". {}; {complete}", script.display());
    assert!(text(&checked(Command::new("bash").args(["-c", &complete]))).contains("spr-cxl"));
    for name in ["bin/tiercel", "lib/tiercel/libtiercel.so"] {
        let sections = checked(Command::new("readelf").arg("-SdW").arg(installed.path(name)));
        assert!(!text(&sections).contains(".debug_info"), "{name} is not stripped");
        let is_library = name.ends_with(".so");
        assert_eq!(text(&sections).contains("soname: [libtiercel.so]"), is_library, "{name}");
    }
}

fn linked_by_programs(installed: &Installed) {
    let source = tempfile::tempdir().unwrap();
    let file = |name: &str| source.path().join(name);
    fs::write(file("p.c"), PROGRAM).unwrap();
    let prefix = format!("--define-variable=prefix={}", installed.path("").display());
    let mut words = Command::new("pkg-config");
    words.env("PKG_CONFIG_PATH", installed.path("lib/pkgconfig"));
    let words = text(&checked(words.args([&prefix, "--cflags", "--libs", "tiercel"])));
    let mut compile = Command::new("cc");
    compile.arg("-o").arg(file("by-pkg-config")).arg(file("p.c")).args(words.split_whitespace());
    checked(&mut compile);
    assert_eq!(text(&checked(&mut Command::new(file("by-pkg-config")))), "allocated\n");
    let project = "cmake_minimum_required(VERSION 3.18)\nproject(p C)\n\
                   find_package(tiercel 0.1 REQUIRED)\nadd_executable(p p.c)\n\
                   target_link_libraries(p tiercel::tiercel)\n";
    fs::write(file("CMakeLists.txt"), project).unwrap();
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(source.path()).arg("-B").arg(file("build"));
    cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", installed.path("").display()));
    checked(&mut cmake);
    checked(Command::new("cmake").arg("--build").arg(file("build")));
    assert_eq!(text(&checked(&mut Command::new(file("build/p")))), "allocated\n");
}

/// By Environment Modules, in a shell that knows nothing else of it.
fn loaded_as_a_module(installed: &Installed) {
    let script = ". /usr/share/modules/init/bash\nset -e\nmodule use \"$1\"\nmodule load tiercel\n\
                  command -v tiercel\nman -w tiercel-run\npkg-config --modversion tiercel\n\
                  module unload tiercel\n! command -v tiercel\n";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, "bash"]).arg(installed.path("share/modulefiles"));
    shell.env("PATH", "/usr/bin:/bin").env_remove("MANPATH");
    let prefix = installed.path("").canonicalize().unwrap();
    let below = |name: &str| prefix.join(name).display().to_string();
    let (command, page) = (below("bin/tiercel"), below("share/man/man1/tiercel-run.1"));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text(&checked(&mut shell)), format!("{command}\n{page}\n{version}\n"));
}
