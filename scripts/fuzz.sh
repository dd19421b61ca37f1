#!/usr/bin/env bash
# Runs the fuzz target for so many seconds (60 by default), from the files of crates/weights/testdata on.
#
# cargo-fuzz asks for a nightly compiler only because it passes unstable flags. Here the stable one is told to take
# them: coverage for libFuzzer to follow, without the address sanitizer; memory safety of what is read is `weights`'
# own business, which has no unsafe code but the mapping.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../fuzz"
target=$(rustc -vV | sed -n 's/^host: //p')
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1
  --cfg fuzzing)
folder=${CARGO_TARGET_DIR:-target}/fuzz
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
find ../crates/weights/testdata -name '*.gguf' -o -name '*.safetensors' | while read -r file; do
  cp "$file" "$corpus/$(sha256sum "$file" | cut -c1-16)"
done
# --target keeps the flags away from build scripts.
RUSTC_BOOTSTRAP=1 RUSTFLAGS="${flags[*]}" cargo build --release --target "$target" --target-dir "$folder" --bin checkpoint
"$folder/$target/release/checkpoint" "$corpus" -max_total_time="${1:-60}" -rss_limit_mb=4096 -timeout=10 -print_final_stats=1
