#!/usr/bin/env python3
"""The whole table of GPU goals on one machine with an H200, llama.cpp beside it on the same files, in pieces of minutes.

  bench/h200.py pack FOLDER          here: builds roci and the op table, packs them with llama.cpp's sources (under 64 MiB)
  bench/h200.py run FOLDER           there: unpacks, builds llama.cpp, runs row after row and prints each beside its goal
  bench/h200.py run FOLDER --rows served,mixture --minutes 9
  bench/h200.py table FOLDER         prints what has been measured so far
  bench/h200.py run FOLDER --device cpu --tiny    everything small, on a machine without a card: whether it runs, not how fast

`run` begins no row that does not fit into --minutes, writes every result to FOLDER/h200.json at once, and leaves out the
rows that are there already: call it until it says that nothing is left. What `run` needs there is Python, a driver with nvrtc
and, for llama.cpp, cmake, a C++ compiler and nvcc; without these its columns stay empty. Models have random weights and are
written to --models (a disk with 60 GB).
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_BYTES = 64 << 20
# Of llama.cpp's sources, what its benchmarks are built from.
PEER_PARTS = ["CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "src", "vendor"]
PEER_TOOLS = ["llama-bench", "batched-bench"]
PEER_LEFT_OUT = re.compile(r"ggml/src/ggml-(vulkan|metal|opencl|sycl|cann|hexagon|webgpu|rpc|musa|zdnn|virtgpu|openvino)/.*")
PEER_OPTIONS = ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=90a", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF",
                "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_BUILD_MTMD=OFF", "-DLLAMA_OPENSSL=OFF", "-DGGML_NATIVE=ON", "-DCMAKE_BUILD_TYPE=Release"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
                                           "n": {"type": "integer"}}, "required": ["name", "tags", "n"]}
TYPES = ["IQ4_XS", "Q3_K", "Q2_K", "IQ3_XXS", "IQ2_XS", "MXFP4", "Q5_0", "Q5_K"]


class Machine:
    """Where a run happens: programs, folders, and sizes that --tiny divides."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.folder, self.tiny, self.device = args.folder.resolve(), args.tiny, args.device
        self.parts, self.models = self.folder / "h200", args.models.resolve()
        self.models.mkdir(parents=True, exist_ok=True)
        self.roci = args.roci.resolve() if args.roci else self.parts / "roci"
        self.peer = self.folder / "llama.cpp-build" / "bin"
        self.env = dict(os.environ) | {"ROCI_KERNEL_CACHE": str(self.folder / "kernels")}

    def small(self, n: int, tiny: int) -> int:
        return tiny if self.tiny else n

    def call(self, command: list, seconds: float, **more: object) -> str:
        """What a program prints, with `notes` on standard error; raises where it fails or takes too long."""
        command, notes = [str(part) for part in command], more.pop("notes", False)
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=self.env | more.pop("env", {}), **more)
        if done.returncode != 0:
            raise RuntimeError(f"`{' '.join(command)[:200]}` ended with {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
        return done.stderr if notes else done.stdout

    def shape(self, name: str, layers: int | None = None) -> list:
        layers = 1 if self.tiny else layers
        return ["--synthetic", "llama-1b" if self.tiny else name, *(["--layers", layers] if layers else [])]

    def file(self, name: str, weights: str, layers: int | None) -> Path:
        return self.models / f"{'tiny-' if self.tiny else ''}{name}{f'-{layers}' if layers else ''}-{weights}.gguf"

    def bench(self, name: str, weights: str, more: list, layers: int | None = None, keep: bool = True) -> dict:
        """tokens/s by test, of `roci bench`."""
        file = self.file(name, weights, layers)
        model = [file] if file.exists() else [*self.shape(name, layers), "--weights", weights, *(["--save", file] if keep else [])]
        out = self.call([self.roci, "bench", *model, "--device", self.device, "-r", self.small(3, 1), "--output", "json", *more], 560)
        found = json.loads(out)
        return {row["test"]: row["tokens_per_second"] for row in found["results"]} | {"load_s": found["load_s"]}

    def peer_bench(self, name: str, weights: str, prompt: int, generate: int, depth: int = 0, layers: int | None = None) -> dict:
        """The same of llama-bench on the same file: {"prompt": , "generate": }; nothing where it was not built."""
        file = self.file(name, weights, layers)
        if not (self.peer / "llama-bench").exists() or not file.exists():
            return {}
        layers_there = "0" if self.device == "cpu" else "99"
        command = [self.peer / "llama-bench", "-m", file, "-ngl", layers_there, "-fa", 1, "-p", prompt, "-n", generate, "-d", depth,
                   "-r", self.small(3, 1), "-o", "json"]
        rows = json.loads(self.call(command, 560))
        return {"generate" if row["n_gen"] else "prompt": row["avg_ts"] for row in rows}

    def serve(self, weights: str, more: list) -> dict:
        """Streams of bench/load.py: {streams: (tokens/s, first token ms, last first token ms)}."""
        command = [sys.executable, self.parts / "load.py", "--roci", self.roci, *self.load_shape(weights), *more]
        out = self.call(command, 560)
        # Words such as "458.0 ms" and "-".
        rows = [line.split() for line in out.splitlines()[1:]]
        number = lambda word: float(word) if word[0].isdigit() else float("nan")  # noqa: E731
        return {row[0]: [number(word) for word in row[1:] if word != "ms"][:3] for row in rows if row and row[0].isdigit()}

    def load_shape(self, weights: str) -> list:
        vocab = ["--vocab", self.parts / "vocab.gguf", "--folder", self.models]
        if not self.tiny:
            return ["--synthetic", "llama-8b", "--weights", weights, *vocab]
        # load.py makes whole shapes only: a small one is made here, under the name that it looks for.
        whole, bare = self.models / f"llama-1b-{weights}.gguf", self.models / "bare.gguf"
        if not whole.exists():
            self.call([self.roci, "bench", *self.shape("llama-1b"), "--weights", weights, "--device", "cpu", "-p", 0, "-n", 0,
                       "--save", bare], 300)
            sys.path.insert(0, str(self.parts))
            import load

            load.add_vocabulary(bare, self.parts / "vocab.gguf", whole)
            bare.unlink()
        return ["--synthetic", "llama-1b", "--weights", weights, *vocab]


def dense(weights: str):
    def row(m: Machine) -> dict:
        p, g = m.small(2048, 32), m.small(128, 4)
        points = f"1@0,8@{m.small(512, 16)},32@{m.small(512, 16)},128@{m.small(512, 16)}"
        return {"roci": m.bench("llama-8b", weights, ["-p", p, "-n", g, "--points", points]),
                "llama.cpp": m.peer_bench("llama-8b", weights, p, g)}
    return row


def long_prompts(m: Machine) -> dict:
    found = {}
    for n in (m.small(16384, 64), m.small(32768, 96)):
        found[f"prompt {n}"] = m.bench("llama-8b", "Q4_K_M", ["-p", n, "-n", 0, "-c", n + 64]).get(f"prompt {n}")
        found[f"llama.cpp {n}"] = m.peer_bench("llama-8b", "Q4_K_M", n, 0).get("prompt")
    return found


def deep_prompt(m: Machine) -> dict:
    p, d = m.small(2048, 32), m.small(4096, 32)
    return {"roci": m.bench("llama-8b", "F16", ["-p", p, "-n", 0, "-d", d]), "llama.cpp": m.peer_bench("llama-8b", "F16", p, 0, d)}


def mixture(m: Machine) -> dict:
    p, d = m.small(2048, 32), m.small(512, 16)
    points = f"1@{d},8@{d},32@{d}"
    return {"roci": m.bench("qwen3-30b-a3b", "Q4_K_M", ["-p", p, "-n", m.small(64, 4), "--points", points], layers=12),
            "llama.cpp": m.peer_bench("qwen3-30b-a3b", "Q4_K_M", p, m.small(64, 4), d, layers=12)}


def one_type(weights: str):
    def row(m: Machine) -> dict:
        p, g = m.small(2048, 32), m.small(64, 4)
        return {"roci": m.bench("llama-8b", weights, ["-p", p, "-n", g]), "llama.cpp": m.peer_bench("llama-8b", weights, p, g)}
    return row


def shape(name: str, weights: str):
    def row(m: Machine) -> dict:
        p, g = m.small(2048, 32), m.small(64, 4)
        return {"roci": m.bench(name, weights, ["-p", p, "-n", g]), "llama.cpp": m.peer_bench(name, weights, p, g)}
    return row


def served(weights: str, streams: str, tiny_streams: str, *more: object):
    def row(m: Machine) -> dict:
        sizes = ["--prompt", m.small(128, 8), "--tokens", m.small(128, 4)] if "--prompt" not in more else []
        more_here = [4 if m.tiny and part in (2048, 16) else part for part in more]
        serve = ["--serve", "--device", m.device, *(["--threads", "1"] if m.device == "cpu" else [])]
        return m.serve(weights, ["--streams", tiny_streams if m.tiny else streams, *sizes, *more_here, *serve])
    return row


def first_load(m: Machine) -> dict:
    """Seconds from nothing compiled to a token, and again with all compiled."""
    m.bench("llama-8b", "Q4_K_M", ["-p", 0, "-n", 1])
    fresh = m.folder / "kernels-first"
    shutil.rmtree(fresh, ignore_errors=True)
    found = {}
    for when in ("empty kernel cache", "again"):
        start = time.time()
        m.call([m.roci, "bench", m.file("llama-8b", "Q4_K_M", None), "--device", m.device, "-p", 0, "-n", 1, "-r", 1], 300,
               env={"ROCI_KERNEL_CACHE": str(fresh)})
        found[when] = time.time() - start
    return found


def tests(m: Machine) -> dict:
    """The op table and tiny models against f64 and the CPU."""
    found = {}
    for name in ("ops", "model"):
        program = m.parts / "tests" / name
        if program.exists():
            names = [] if name == "ops" else ["card::"]
            out = m.call([program, *names, "--test-threads", 1], 560, env={} if m.device == "cpu" else {"ROCI_REQUIRE_GPU": "1"})
            found[name] = re.findall(r"test result: .*", out)[-1]
    return found or {"skipped": "no test programs were packed"}


def sanitized(tool: str):
    def row(m: Machine) -> dict:
        if not shutil.which("compute-sanitizer"):
            return {"skipped": "no compute-sanitizer"}
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", 9, m.roci, "bench", *m.shape("llama-1b", 2), "--weights", "Q4_K_M",
                   "--device", m.device, "-p", 40, "-n", 2, "-r", 1, "--points", "1@0,8@32"]
        return {"end": m.call(command, 560).strip().splitlines()[-1]}
    return row


def soak(m: Machine) -> dict:
    out = m.call([m.roci, "bench", *m.shape("llama-1b"), "--weights", "Q4_0", "--device", m.device, "--soak", m.small(10000, 20), "--batch", m.small(16, 2)], 560, notes=True)
    return {"says": out.strip().splitlines()[-1]}


JSON_CHAT = json.dumps({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}})
# name: (what, goal, minutes, function), in the order of what is missing most.
ROWS = {
    "schema": ("64 chats with a JSON schema, F16, tokens/s", "6,000", 4, served("F16", "64", "2", "--chat", "--metrics", "roci_engine_masks,roci_engine_logits", "--all", JSON_CHAT)),
    "plain-chat": ("64 plain chats, F16, tokens/s", "(the schema's row: 90 %)", 3, served("F16", "64", "2", "--chat")),
    "dense-Q4_K_M": ("Q4_K_M: one sequence; 128 at depth 512", "560; 14,500", 4, dense("Q4_K_M")),
    "dense-Q4_0": ("Q4_0: one sequence", "600", 4, dense("Q4_0")),
    "mixture": ("Qwen3-30B-A3B's shape: prompt; 1 / 8 / 32 sequences", "63,000; 1,600 / 5,300 / 9,000", 5, mixture),
    **{f"type-{name}": (f"8B {name}: generate", "420" if name == "Q5_K" else "1.5 x llama.cpp", 3, one_type(name)) for name in TYPES},
    "gemma3-12b": ("Gemma-3-12B's shape: prompt, generate", "1.3 x llama.cpp", 4, shape("gemma3-12b", "Q4_K_M")),
    "gpt-oss-20b": ("gpt-oss-20B's shape: prompt, generate", "1.3 x llama.cpp", 4, shape("gpt-oss-20b", "MXFP4")),
    "first-load": ("seconds of a first load, kernels compiled", "4", 2, first_load),
    "served": ("served Q4_K_M, 64 / 128 / 256 streams", "8,800 / 10,500 / 11,800", 5, served("Q4_K_M", "64,128,256", "1,2")),
    "long-streams": ("32 streams of 2,048 tokens: last first token", "2,400 ms", 4,
                     served("Q4_K_M", "32", "2", "--prompt", 2048, "--tokens", 16)),
    "penalty": ("63 plain streams and one with frequency_penalty, F16", "7,400", 3,
                served("F16", "64", "2", "--odd", '{"frequency_penalty": 0.5}', "--n-odd", 1)),
    "logprobs": ("64 streams with logprobs: 5, F16", "6,000", 3, served("F16", "64", "2", "--all", '{"logprobs": 5}')),
    "long-prompts": ("Q4_K_M: prompts of 16,384 / 32,768", "17,500 / 14,000", 4, long_prompts),
    "deep-prompt": ("F16: prompt of 2,048 at depth 4,096", "24,000", 3, deep_prompt),
    "dense-F16": ("F16: prompt, one sequence, batches", "85 % of the bandwidth limit: 242", 4, dense("F16")),
    "dense-Q8_0": ("Q8_0: prompt, one sequence, batches", "75 %: 403", 4, dense("Q8_0")),
    "tests": ("op table and tiny models", "all pass", 9, tests),
    "memcheck": ("compute-sanitizer memcheck", "nothing", 4, sanitized("memcheck")),
    "racecheck": ("compute-sanitizer racecheck", "nothing", 6, sanitized("racecheck")),
    "soak": ("10,000 steps", "no allocation, memory flat", 4, soak),
}


def build_peer(m: Machine, deadline: float) -> None:
    """llama.cpp's benchmarks for this very card; goes on where a call before was broken off."""
    source = m.parts / "llama.cpp"
    if (m.peer / "llama-bench").exists() or not source.exists() or not shutil.which("cmake"):
        return
    options = [option for option in PEER_OPTIONS if m.device != "cpu" or "CUDA" not in option]
    build = m.folder / "llama.cpp-build"
    try:
        m.call(["cmake", "-S", source, "-B", build, *options], 120)
        m.call(["cmake", "--build", build, "-j", os.cpu_count() or 2, "--target", "llama-bench"], max(deadline - time.time(), 1))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"llama.cpp is not built yet: {str(error)[-400:]}", flush=True)


def flat(found: dict, before: str = "") -> str:
    parts = []
    for name, value in found.items():
        shown = f"{value:,.1f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}" if isinstance(value, float) else str(value)
        parts.append(flat(value, f"{name} ") if isinstance(value, dict) else f"{before}{name}: {shown}")
    return "; ".join(part for part in parts if part)


def print_row(name: str, result: dict) -> None:
    what, goal, *_ = ROWS[name]
    print(f"{name}\n  {what}\n  goal      {goal}\n  measured  {result.get('error') or flat(result['found'])}", flush=True)


def results_of(folder: Path) -> dict:
    file = folder / "h200.json"
    return json.loads(file.read_text()) if file.exists() else {}


def run(args: argparse.Namespace) -> int:
    archive, parts = args.folder / "h200.tar.xz", args.folder / "h200"
    if archive.exists() and not parts.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(args.folder, filter="data")
    if not parts.exists():
        raise SystemExit(f"h200: error: {archive} is not there\nhint: first bench/h200.py pack {args.folder}")
    m, results, deadline = Machine(args), results_of(args.folder), time.time() + 60 * args.minutes
    build_peer(m, deadline)
    names = args.rows.split(",") if args.rows else list(ROWS)
    left = [name for name in names if "found" not in results.get(name, {})]
    for name in left:
        minutes = 0.2 if m.tiny else ROWS[name][2]
        if time.time() + 60 * minutes > deadline:
            continue
        start, result = time.time(), {"date": datetime.date.today().isoformat(), "device": args.device}
        try:
            result["found"] = ROWS[name][3](m)
        except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            result["error"] = str(error)[-800:]
        result["seconds"] = round(time.time() - start, 1)
        results[name] = result
        fresh = args.folder / "h200.json.new"
        fresh.write_text(json.dumps(results, indent=1) + "\n")
        fresh.replace(args.folder / "h200.json")
        print_row(name, result)
    left = [name for name in names if "found" not in results.get(name, {})]
    print(f"left: {', '.join(left)}" if left else "nothing is left")
    return 1 if left else 0


def pack(args: argparse.Namespace) -> int:
    sys.path.insert(0, str(HERE.parent / "scripts"))
    import fetch

    root, parts = HERE.parent, args.folder / "h200"
    shutil.rmtree(parts, ignore_errors=True)
    (parts / "tests").mkdir(parents=True)
    environment = os.environ | {"CARGO_PROFILE_RELEASE_STRIP": "true", "CARGO_PROFILE_DEV_DEBUG": "0"}
    if not args.roci:
        subprocess.run(["cargo", "build", "--release", "--bin", "roci"], cwd=root, env=environment, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    shutil.copy(args.roci or target / "release/roci", parts / "roci")
    if not args.no_tests:
        for package, name in (("roci-ops", "ops"), ("roci-model", "model")):
            command = ["cargo", "test", "-p", package, "--test", "it", "--no-run", "--message-format=json"]
            lines = subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            [program] = [json.loads(line)["executable"] for line in lines.splitlines() if '"executable":"' in line]
            shutil.copy(program, parts / "tests" / name)
            subprocess.run(["strip", parts / "tests" / name], check=True)
    shutil.copy(HERE / "load.py", parts)
    source = fetch.llama_cpp()
    shutil.copy(source / "models/ggml-vocab-llama-bpe.gguf", parts / "vocab.gguf")
    copy_peer(source, parts / "llama.cpp")
    archive = args.folder / "h200.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(parts, "h200")
    size = archive.stat().st_size
    print(f"{archive}: {size / (1 << 20):.1f} MiB")
    if size > MAX_BYTES:
        raise SystemExit(f"h200: error: more than {MAX_BYTES >> 20} MiB\nhint: --no-tests leaves the op table out")
    return 0


def copy_peer(source: Path, to: Path) -> None:
    """llama.cpp without what its benchmarks do not need."""
    skip = lambda folder, names: [n for n in names if PEER_LEFT_OUT.match(f"{Path(folder, n).relative_to(source)}/")]  # noqa: E731
    to.mkdir()
    for part in PEER_PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, to / part, ignore=skip)
        elif (source / part).exists():
            shutil.copy(source / part, to / part)
    (to / "tools").mkdir()
    for tool in PEER_TOOLS:
        shutil.copytree(source / "tools" / tool, to / "tools" / tool)
    (to / "tools/CMakeLists.txt").write_text("find_package(Threads REQUIRED)\n" + "".join(f"add_subdirectory({tool})\n" for tool in PEER_TOOLS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "run", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--roci", type=Path, help="a built roci, instead of a release build")
    parser.add_argument("--no-tests", action="store_true", help="pack no test programs")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rows", help=f"only these, with commas: {', '.join(ROWS)}")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no row that may take longer than what is left of them")
    parser.add_argument("--models", type=Path, default=Path("/tmp/h200-models"))
    parser.add_argument("--tiny", action="store_true", help="one layer and a few tokens")
    args = parser.parse_args()
    unknown = [name for name in (args.rows or "").split(",") if name and name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.what == "pack":
        return pack(args)
    if args.what == "run":
        return run(args)
    for name, result in results_of(args.folder).items():
        print_row(name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
