#!/usr/bin/env bash
# Candle over our crates on a real GPU, from a machine without one:
#
#   bench/candle.sh pack FOLDER    builds everything and packs it into FOLDER/candle.tar.xz (some 20 MB)
#   bench/candle.sh run FOLDER     on the GPU's machine: unpacks, and runs errors, speed, the comparison, Candle's own tests
#
# PROFILE=dev packs what ./check has built, whose share of work on the CPU is slow.
#
# `run` needs a driver and its run-time compiler (hiprtc or nvrtc) and nothing else: no cargo, no network. It goes on after a
# failure and ends with 1; all of its output stands in $OUT (the folder itself where OUT is not set). ELEMENTS, ROUNDS,
# LAYERS, WIDTH and VOCABULARY make the measurement smaller, SAMPLE the comparison; MODEL is a GGUF file to decode in place of
# a made-up 8B Llama. FILTER chooses parts, of which "faults counts bench compare tests" is all. Kernels are kept beside the
# programs, so a part that was broken off is faster the next time; only "bench" starts with none, and times the compiler.
# GPU is what programs are run by, such as crates/gfx/run for the software GPU.
set -uo pipefail

GPU=${GPU:-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "candle.sh: error: $1" >&2; exit 2; }
[ $# = 2 ] || die 'pack FOLDER, or run FOLDER'
mkdir -p "$2"
folder=$(cd "$2" && pwd)

pack() {
  set -e
  local candle parts=$folder/candle profile=${PROFILE:-release}
  candle=$("$root/crates/candle/unmodified")
  rm -rf "$parts"
  mkdir -p "$parts/tests"
  # Panics must unwind: the comparison takes them for answers.
  cargo build --profile "$profile" --manifest-path "$root/crates/candle/examples/Cargo.toml" --bin bench --bin compare --bin counts --bin faults
  cp "${CARGO_TARGET_DIR:-$root/crates/candle/examples/target}"/"${profile/dev/debug}"/{bench,compare,counts,faults} "$parts"
  local package=(-p candle-core --lib) name
  for name in bilinear conv grad layout matmul pool quantized tensor; do package+=(--test "${name}_tests"); done
  for _ in core nn; do
    cargo test --profile "$profile" --manifest-path "$candle/Cargo.toml" --features cuda --no-run --message-format=json "${package[@]}" |
      python3 -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        shutil.copy(message["executable"], sys.argv[1] + "/" + message["target"]["name"])
' "$parts/tests"
    package=(-p candle-nn --test ops)
  done
  strip "$parts"/{bench,compare,counts,faults} "$parts"/tests/*
  tar -C "$folder" -cJf "$folder/candle.tar.xz" candle
  rm -rf "$parts"
  du -h "$folder/candle.tar.xz"
}

run() {
  local parts=$folder/candle out=${OUT:-$folder} status=0 part
  if [ ! "$parts/.unpacked" -nt "$folder/candle.tar.xz" ]; then
    rm -rf "$parts"
    tar -C "$folder" -xJf "$folder/candle.tar.xz" || die "$folder/candle.tar.xz: first bench/candle.sh pack"
    touch "$parts/.unpacked"
  fi
  export RUST_BACKTRACE=0 ROCI_KERNEL_CACHE=$folder/kernels
  for part in ${FILTER:-faults counts bench compare tests}; do
    echo "--- $part"
    case $part in
      faults | counts) $GPU "$parts/$part" ;;
      bench) ROCI_KERNEL_CACHE=$(mktemp -d) $GPU "$parts/bench" --elements "${ELEMENTS:-67108864}" --rounds "${ROUNDS:-50}" \
        --layers "${LAYERS:-32}" --width "${WIDTH:-4096}" --vocabulary "${VOCABULARY:-128256}" ${MODEL:+--model "$MODEL"} ;;
      compare) $GPU "$parts/compare" ${SAMPLE:+--sample "$SAMPLE"} ;;
      tests) tests "$parts" ;;
      *) die "no part $part" ;;
    esac || { status=1; echo "--- $part FAILED"; }
  done > "$out/candle.txt" 2>&1
  grep -E '^---|^test result|passed of|FAILED|cases compared|: as on|DIFFERENT|^\||GB/s|Tflop|launches|tokens' "$out/candle.txt"
  return $status
}

# Candle's own tests for a CUDA device: 124, of which none may fail or be missing.
tests() {
  local test passed=0 status=0
  for test in "$1"/tests/*; do
    echo "${test##*/}"
    (cd "$1" && $GPU "$test" gpu cuda allocates_twice) > "$folder/test.txt" 2>&1 || status=1
    cat "$folder/test.txt"
    passed=$((passed + $(grep -c '^test .*ok$' "$folder/test.txt")))
  done
  echo "$passed passed of 124"
  [ $status = 0 ] && [ $passed = 124 ]
}

case $1 in
  pack) pack ;;
  run) run ;;
  *) die "$1: pack or run" ;;
esac
