#!/usr/bin/env bash
# Tries a release binary on bare systems: roots that hold a C library and busybox and nothing else, made from packages of
# Debian and Ubuntu, each checked against its index. Prints what `roci` says there; fails if a step does.
#
#   sudo scripts/try_release.sh PROGRAM [MODEL.gguf]
#
# A program for x86-64 with glibc runs on Ubuntu 16.04 (glibc 2.23) and Debian 11 (2.31), one for ARM64 on Debian 11 under
# qemu-aarch64-static, a static one on a system without any C library and on one with musl's. With a model it
# answers too. Needs root for chroot, and curl, xz, dpkg-deb and readelf.
set -euo pipefail
program=$(realpath "$1")
model=${2:+$(realpath "$2")}
work=$(mktemp -d)
trap 'for root in "$work"/*/; do umount -q "$root/proc" "$root/dev" 2> /dev/null || :; done; rm -rf --one-file-system "$work"' EXIT

debian=http://deb.debian.org/debian ubuntu=http://archive.ubuntu.com/ubuntu

# package MIRROR SUITE ARCH NAME ROOT: one package unpacked into a root.
package() {
  local index="$work/$2-$3.index"
  [ -s "$index" ] || curl -fsSL "$1/dists/$2/main/binary-$3/Packages.xz" | xz -d > "$index"
  local file sum
  read -r file sum < <(awk -v name="$4" '
    $1 == "Package:" { on = $2 == name } on && $1 == "Filename:" { file = $2 } on && $1 == "SHA256:" { sum = $2 }
    END { print file, sum }' "$index")
  [ -n "$file" ] || { echo "$2 has no package $4 for $3" >&2; return 1; }
  curl -fsSL "$1/$file" -o "$work/package.deb"
  echo "$sum  $work/package.deb" | sha256sum --check --quiet
  mkdir -p "$5"
  dpkg-deb -x "$work/package.deb" "$5"
}

# try NAME: `roci` in the root of that name.
try() {
  local root=$work/$1
  echo "== $1"
  mkdir -p "$root"/{proc,dev,tmp,opt}
  cp "$program" "$root/opt/roci"
  [ -z "$model" ] || cp "$model" "$root/opt/model.gguf"
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  local run=("$(command -v chroot)" "$root" ${emulator:+/opt/emulator} /opt/roci)
  env -i HOME=/tmp "${run[@]}" --version
  env -i HOME=/tmp "${run[@]}" devices
  # Its status tells problems of GPUs, of which a bare system may have some; a crash is another matter.
  env -i HOME=/tmp "${run[@]}" doctor --no-test || [ $? -eq 1 ]
  [ -z "$model" ] || env -i HOME=/tmp "${run[@]}" run /opt/model.gguf -n 8 --temperature 0 "What is the capital of France?"
  umount "$root/proc" "$root/dev"
}

emulator=
case "$(readelf -h "$program" | awk '/Machine:/ { print $NF }'), $(readelf -l "$program" | grep -o 'ld-[a-z0-9.-]*' || echo static)" in
  X86-64,\ ld-linux*)
    package $ubuntu xenial amd64 libc6 "$work/ubuntu-16.04"
    try ubuntu-16.04
    package $debian bullseye amd64 libc6 "$work/debian-11"
    try debian-11
    ;;
  X86-64,\ static)
    mkdir "$work/no-c-library"
    try no-c-library
    package $debian bookworm amd64 musl "$work/musl"
    try musl
    ;;
  AArch64,\ *)
    emulator=$(command -v qemu-aarch64-static)
    case "$(readelf -l "$program")" in
      *ld-linux-aarch64*) package $debian bullseye arm64 libc6 "$work/debian-11-arm64" ;;
      *) mkdir "$work/debian-11-arm64" ;;
    esac
    mkdir -p "$work/debian-11-arm64/opt"
    cp "$emulator" "$work/debian-11-arm64/opt/emulator"
    try debian-11-arm64
    ;;
  *)
    echo "$program: no system to try it on" >&2
    exit 1
    ;;
esac
