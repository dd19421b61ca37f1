#!/usr/bin/env python3
"""llama.cpp's HIP back end and ours on the same software Radeon, from the same file: tokens compared, and what each executes
for a prompt and for one token more, side by side.

    scripts/amd_versus.py MODEL.gguf [--tokens 64] [--roci target/debug/roci] [--keep FOLDER]

llama.cpp is Debian's own binary (libggml0-backend-hip and llama.cpp-tools of sid, 480 MB with what they need), on HIP 6.4;
ours runs on HIP 7.2. Both are run for one token and for three. Ours tries steps of several sizes when it loads, so its prompt
and its decode step are the last of a run, from `embed` on; llama.cpp's prompt is its first run from the first norm on (its embedding is on the CPU), and
a decode step half of what the second run does more. What it counts says nothing about time: see
docs/developer/amd-versus.md.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN, FETCH = ROOT / "crates/gfx/run", ROOT / "crates/gfx/fetch-rocm"
PACKAGES = "libggml0-backend-hip,llama.cpp-tools"
TEXT = "The history of the bicycle begins in the early nineteenth century, when a German baron built a wooden machine. "
COUNTS = ["instructions", "vector", "matrix", "scalar", "lds_instructions", "global", "barriers"]
BYTES = ["global_read_bytes", "global_written_bytes"]
# First of the rows whose pattern is found in a kernel's name.
KINDS = [
    ("copies by the runtime", r"__amd_rocclr|^\?|copyBuffer|fillBuffer"),
    ("attention", r"flash|attn|attention|soft_?max|fattn"),
    ("keys, values and rope", r"rope|kv_|store_kv|set_rows|cpy_|scatter"),
    ("embedding and rows", r"get_rows|embed|gather|rows"),
    ("sampling", r"argmax|sample|top_k|greedy"),
    ("activations to 8 bits", r"quantize|quantise|pack_acts|q8_1|to_q8"),
    ("products", r"mul_mat|matmul|matvec|mmq|mmv|gemm|Cijk|dequant|convert_unary"),
    ("norms and the rest", r""),
]


def fail(message, hint=None):
    print(f"amd_versus: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(1)


class Counted:
    """What one run executed, kernel by kernel."""

    def __init__(self, path, first, which):
        """From the dispatch of a kernel on: its first, or its last."""
        self.kernels = collections.defaultdict(collections.Counter)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        starts = [n for n, row in enumerate(rows) if first in row["kernel"]]
        if not starts:
            fail(f"no kernel `{first}` in {path}")
        for row in rows[starts[which] :]:
            of = self.kernels[row["kernel"]]
            of["dispatches"] += 1
            of["occupancy"] += row["occupancy"]
            of.update({name: row[name] for name in [*COUNTS, *BYTES]})

    def kinds(self):
        sums = collections.defaultdict(collections.Counter)
        for kernel, counts in self.kernels.items():
            kind = next(kind for kind, pattern in KINDS if re.search(pattern, kernel))
            sums[kind].update(counts)
        return sums


def less(more, fewer, parts):
    """The kinds of one run without those of another, as so many equal parts."""
    kinds = {}
    for kind in more:
        counts = {name: (n - fewer.get(kind, {}).get(name, 0)) / parts for name, n in more[kind].items()}
        if counts["dispatches"]:
            kinds[kind] = counts
    return kinds


def ours(model, prompt, n, folder, program):
    counters = folder / f"ours-{n}.json"
    command = [RUN, program, "run", model, prompt, "--raw", "--temperature", "0", "--max-tokens", n, "--context", 256]
    command += ["--output=json", "--device", "rocm", "--step-deadline", 3600, "--speculate", "off"]
    done = run(command, {"GFX_COUNTERS": counters}, folder, f"ours-{n}")
    answer = json.loads(done)
    return Counted(counters, "embed", -1), answer["text"], len(answer["prompt_tokens"])


def theirs(model, prompt, n, folder, libraries):
    counters = folder / f"theirs-{n}.json"
    program = next((p for p in (libraries.parents[2] / "usr/bin" / name for name in ("llama-completion", "llama-cli")) if p.exists()), None)
    if program is None:
        fail(f"no llama-completion in {libraries.parents[2]}/usr/bin")
    # Back ends are looked for where one stands.
    backends = folder / "backends"
    backends.mkdir(exist_ok=True)
    for file in libraries.rglob("libggml-*.so"):
        if re.search(r"libggml-(cpu|hip)", file.name) and not (backends / file.name).exists():
            (backends / file.name).symlink_to(file)
    command = [RUN, "--hip", "6.4", program, "-m", model, "-p", prompt, "-n", n, "--temp", 0, "-ngl", 99, "-c", 256]
    command += ["--no-warmup", "-no-cnv", "--simple-io", "--no-display-prompt"]
    more = {"GFX_COUNTERS": counters, "GFX_WITH": PACKAGES, "GFX_LIBRARY_PATH": libraries / "llama"}
    done = run(command, more, backends, f"theirs-{n}")
    return Counted(counters, "rms_norm", 0), done


def run(command, more, cwd, name):
    """What a run prints; one that was kept is not made again."""
    kept = cwd / f"{name}.out"
    if kept.exists():
        return kept.read_text()
    env = {**os.environ, **{key: str(value) for key, value in more.items()}}
    print(f"amd_versus: {name}", file=sys.stderr, flush=True)
    done = subprocess.run([str(word) for word in command], env=env, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    (cwd / f"{name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        fail(f"{name} ended with {done.returncode}: {done.stderr[-800:]}")
    kept.write_text(done.stdout)
    return done.stdout


def table(title, pairs):
    print(f"\n{title}\n")
    print("| | | dispatches | " + " | ".join(name.replace("_", " ") for name in COUNTS) + " | read MB | written MB | occupancy |")
    print("|---|---|" + "--:|" * (len(COUNTS) + 4))
    order = [kind for kind, _ in KINDS]
    for kind in [*order, "all"]:
        for who, kinds in pairs:
            counts = kinds.get(kind)
            if kind == "all":
                counts = sum((collections.Counter(c) for c in kinds.values()), collections.Counter())
            if not counts:
                continue
            cells = [f"{counts['dispatches']:.0f}"]
            cells += [f"{counts[name] / 1000:,.1f} k" for name in COUNTS]
            cells += [f"{counts[name] / 1e6:,.2f}" for name in BYTES]
            cells.append(f"{counts['occupancy'] / counts['dispatches']:.1f}")
            print(f"| {kind} | {who} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64, help="about so many tokens of prompt")
    parser.add_argument("--roci", default=str(ROOT / "target/debug/roci"))
    parser.add_argument("--keep", help="a folder for the counters; what it holds is not run again")
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.keep or tempfile.mkdtemp(prefix="amd-versus-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([FETCH, "--suite", "sid", "--with", PACKAGES], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    libraries = pathlib.Path(done.stdout.strip())
    # Four letters and a space or less are a token, here: 21 tokens a sentence.
    prompt = (TEXT * (arguments.tokens // 20 + 1)).strip()
    prompt = " ".join(prompt.split(" ")[: int(arguments.tokens * 0.86)])
    model = str(pathlib.Path(arguments.model).resolve())
    one, text, n_prompt = ours(model, prompt, 1, folder, arguments.roci)
    three, text, _ = ours(model, prompt, 3, folder, arguments.roci)
    their_one, _ = theirs(model, prompt, 1, folder, libraries)
    their_three, their_text = theirs(model, prompt, 3, folder, libraries)
    same = text.strip() == their_text.strip().removesuffix("[end of text]").strip()
    print(f"{n_prompt} tokens of prompt; then ours {text!r}, llama.cpp {their_text.strip()!r}: {'equal' if same else 'DIFFERENT'}")
    table("The prompt, and the first token", [("ours", less(one.kinds(), {}, 1)), ("llama.cpp", less(their_one.kinds(), {}, 1))])
    table("One token more", [("ours", less(three.kinds(), {}, 1)), ("llama.cpp", less(their_three.kinds(), their_one.kinds(), 2))])
    for who, counted in (("ours, prompt", one), ("ours, one token", three), ("llama.cpp, prompt", their_one), ("llama.cpp, all", their_three)):
        rows = sorted(counted.kernels.items(), key=lambda row: -row[1]["instructions"])[:12]
        print(f"\n{who}, largest kernels: " + "; ".join(f"`{k[:60]}` {c['instructions'] / 1e6:.1f} M in {c['dispatches']}" for k, c in rows))
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
