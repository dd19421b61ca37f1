#!/usr/bin/env bash
# Candle over our crates on a real GPU, from a machine without one:
#
#   bench/candle.sh pack FOLDER    builds everything and packs it into FOLDER/candle.tar.xz (some 20 MB)
#   bench/candle.sh run FOLDER     on the GPU's machine: unpacks, and runs errors, the comparison, Candle's own tests, speed
#
# `run` needs a driver and its run-time compiler (hiprtc or nvrtc) and nothing else: no cargo, no network. It goes on after
# a failure and ends with 1; all of its output stands in $OUT (the folder itself where OUT is not set). ELEMENTS, ROUNDS, LAYERS
# and WIDTH make the measurement smaller, SAMPLE the comparison, FILTER chooses parts: "faults compare tests bench" is all of them.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "candle.sh: error: $1" >&2; exit 2; }
[ $# = 2 ] || die 'pack FOLDER, or run FOLDER'
mkdir -p "$2"
folder=$(cd "$2" && pwd)

pack() {
  set -e
  local candle parts=$folder/candle
  candle=$("$root/crates/candle/unmodified")
  rm -rf "$parts"
  mkdir -p "$parts/tests"
  # Panics must unwind: the comparison takes them for answers.
  export CARGO_PROFILE_RELEASE_STRIP=true CARGO_PROFILE_RELEASE_DEBUG=0
  cargo build --release --manifest-path "$root/crates/candle/examples/Cargo.toml" --bin bench --bin compare --bin faults
  cp "${CARGO_TARGET_DIR:-$root/crates/candle/examples/target}"/release/{bench,compare,faults} "$parts"
  local package=(-p candle-core --lib) name
  for name in bilinear conv grad layout matmul pool quantized tensor; do package+=(--test "${name}_tests"); done
  for _ in core nn; do
    cargo test --release --manifest-path "$candle/Cargo.toml" --features cuda --no-run --message-format=json "${package[@]}" |
      python3 -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        shutil.copy(message["executable"], sys.argv[1] + "/" + message["target"]["name"])
' "$parts/tests"
    package=(-p candle-nn --test ops)
  done
  tar -C "$folder" -cJf "$folder/candle.tar.xz" candle
  rm -rf "$parts"
  du -h "$folder/candle.tar.xz"
}

run() {
  local parts=$folder/candle out=${OUT:-$folder} status=0 part test
  [ -d "$parts" ] || tar -C "$folder" -xJf "$folder/candle.tar.xz" || die "$folder/candle.tar.xz: first bench/candle.sh pack"
  export RUST_BACKTRACE=0 ROCI_KERNEL_CACHE=$folder/kernels
  for part in ${FILTER:-faults bench compare tests}; do
    echo "--- $part"
    case $part in
      faults) "$parts/faults" ;;
      bench) "$parts/bench" --elements "${ELEMENTS:-67108864}" --rounds "${ROUNDS:-50}" --layers "${LAYERS:-32}" --width "${WIDTH:-4096}" ;;
      compare) "$parts/compare" ${SAMPLE:+--sample "$SAMPLE"} ;;
      tests)
        local failed=0
        for test in "$parts"/tests/*; do
          echo "${test##*/}"
          (cd "$parts" && "$test" gpu cuda allocates_twice) || failed=1
        done
        [ $failed = 0 ]
        ;;
      *) die "no part $part" ;;
    esac || { status=1; echo "--- $part FAILED"; }
  done > "$out/candle.txt" 2>&1
  grep -E '^---|^test result|FAILED|cases compared|DIFFERENT|^\||GB/s|launches' "$out/candle.txt"
  return $status
}

case $1 in
  pack) pack ;;
  run) run ;;
  *) die "$1: pack or run" ;;
esac
