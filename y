#!/bin/sh
# x: the one entry to every chore on a fresh Debian 12 machine. It installs the packages the verb
# needs (setup/packages.txt) and a Rust compiler where there is none new enough, then hands over to
# `cargo xtask`, where everything else is.
#
#   ./x demo      builds Tiercel and shows what it finds out about a real program
#   ./x test      everything CI checks         ./x bench NAME    ratios against peers
#   ./x lab       the guest lab                ./x setup         only install, all groups
#   ./x VERB ...  any other verb of `cargo xtask`; `./x help` lists them
set -eu
cd "$(dirname "$0")"

say() { printf 'x: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        say "this needs root and there is no sudo; run as root: $*"
        return 1
    fi
}

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

packages_of() { # groups...
    for group in "$@"; do sed -n "s/^$group  *//p" setup/packages.txt; done
}

install_groups() { # groups...
    command -v dpkg-query >/dev/null || {
        say "not a Debian system: please install these yourself: $(packages_of "$@" | tr '\n' ' ')"
        return 0
    }
    missing=
    for package in $(packages_of "$@" | sort -u); do
        installed "$package" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    say "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    # /dev/null: dpkg must not eat our caller's input.
    as_root apt-get update -qq </dev/null || say "apt-get update failed; trying the lists at hand"
    # shellcheck disable=SC2086
    as_root apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $missing \
        </dev/null >target/setup.log 2>&1 || {
        tail -n 5 target/setup.log >&2
        say "could not install all of them (log: target/setup.log); what needs them will say so"
    }
}

# True when the cargo on PATH is at least the workspace's rust-version.
cargo_is_new() {
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v cargo >/dev/null || return 1
    have=$(cargo --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ]
}

need_cargo() {
    [ -d "$HOME/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"
    cargo_is_new && return
    # Debian 12's own rustc is 1.63; the browsers' toolchain beside it (package cargo-web) is new.
    install_groups rust
    cargo_is_new && return
    say "cargo $wanted or newer is needed, found: $(cargo --version 2>/dev/null || echo none)"
    say "install package rustup (Debian 13 and newer) and run: rustup default stable"
    say "or follow https://rustup.rs, then run ./x again"
    exit 1
}

mkdir -p target
verb=${1:-help}
case $verb in
    demo) install_groups build demo ;;
    test) install_groups build test bench ;;
    bench) install_groups build bench ;;
    real-programs) install_groups build test ;;
    setup) install_groups build test demo bench ;;
    *) install_groups build ;;
esac
need_cargo
[ "$verb" = setup ] && exit 0
exec cargo xtask "$@"
