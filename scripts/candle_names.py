#!/usr/bin/env python3
"""Checks our stand-ins for cudarc and candle-kernels against Candle releases.

    scripts/candle_names.py [--verbose] RELEASE...

RELEASE is a version on crates.io, such as 0.11.1, which is fetched, or a folder of Candle's sources: its repository, or the
unpacked crates candle-core, candle-nn and candle-kernels (with or without their versions). Every kernel that Candle's own candle-kernels defines and that Candle's Rust code asks for
must be in our tables with as many parameters, and every launcher symbol in our ffi.rs with as many arguments. Needs a
C preprocessor (`cc -E`). Ends with 1 where something is missing.
"""

import argparse
import itertools
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
OURS = ROOT / "crates" / "candle" / "candle-kernels"
PRELUDE = ROOT / "crates" / "ops" / "kernels"
# Candle passes five arguments to it, and its own kernel leaves the last one out.
ONE_MORE = {"dequantize_mul_mat_vec_q5_k"}
DTYPES = "u8 u32 i16 i32 i64 bf16 f16 f32 f64 f8e4m3".split()
KERNEL = re.compile(r'extern\s+"C"\s+(?:__attribute__\(\(global[^{};]*?\)\)\)|__global__)\s*void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(')


def fail(message, hint=None):
    print(f"candle_names: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    sys.exit(1)


def count_parameters(text, start):
    """Parameters of a list whose opening bracket stands before `start`."""
    depth, n, any_word = 0, 1, False
    for at in range(start, len(text)):
        c = text[at]
        if c in "([<":
            depth += 1
        elif c in ")]>":
            if depth == 0:
                return n if any_word else 0
            depth -= 1
        elif c == "," and depth == 0:
            # A comma behind the last parameter, as Rust has it, begins no other.
            n += bool(re.match(r"\s*[^)\s]", text[at + 1 : at + 400]))
        elif not c.isspace():
            any_word = True
    return n


def preprocess(text, folder, defines):
    """`cc -E`, with empty files in place of the headers of NVIDIA and of the C library."""
    include = re.compile(r'^\s*#\s*include\s*["<]([^">]+)', re.M)
    files = [path.read_text() for path in folder.rglob("*.cuh")]
    with tempfile.TemporaryDirectory() as empty:
        for name in {name for file in [text, *files] for name in include.findall(file)}:
            if not (folder / name).exists() and not (PRELUDE / name).exists() and ".." not in name:
                (pathlib.Path(empty) / name).parent.mkdir(parents=True, exist_ok=True)
                (pathlib.Path(empty) / name).touch()
        folders = itertools.chain.from_iterable(("-I", str(path)) for path in (empty, folder, PRELUDE))
        command = ["cc", "-E", "-P", "-x", "c++", "-w", "-nostdinc", *folders, *defines, "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"cc -E: {done.stderr.strip()[:400]}")
    return done.stdout


def kernels_in(text):
    return {m[1]: count_parameters(text, m.end()) for m in KERNEL.finditer(text)}


def their_kernels(folder):
    found = {}
    for path in sorted(folder.glob("src/*.cu")):
        text = preprocess(path.read_text(), folder / "src", ["-D__CUDA_ARCH__=900", "-D__CUDACC__"])
        found.update(kernels_in(text))
    return found


def table(text):
    """The lines of source that a file's table of kernels stands for."""
    for row in re.findall(r"^//@(.*)$", text, re.M):
        if "=" not in row:  # says something of all kernels
            continue
        head, *words = row.split(";")
        pattern, body = (part.strip() for part in head.split("=", 1))
        lists = [(name.strip(), values.split()) for name, values in (word.split(":", 1) for word in words)]
        for choice in itertools.product(*(values for _, values in lists)):
            line, name = body, pattern
            for (variable, _), word in zip(lists, choice):
                line, name = line.replace(f"${variable}", word), name.replace(f"${variable}", word)
            yield name, line


def families():
    """Our families of kernels: name and text, as lib.rs puts them together, without numbers.h."""
    for name, files in re.findall(r'^    ([A-Z]+) = \w+, ((?:"[\w.]+"\s*)+);', (OURS / "src" / "lib.rs").read_text(), re.M):
        yield name.lower(), "".join((OURS / "kernels" / file).read_text() for file in re.findall(r'"([\w.]+)"', files))


def our_kernels():
    found = {}
    numbers = (OURS / "kernels" / "numbers.h").read_text()
    for family, text in families():
        rows = list(table(text))
        names = [name for name, _ in rows]
        source = "\n".join([numbers, text, *(line for _, line in rows)])
        made = kernels_in(preprocess(source, OURS / "kernels", ["-D__HIP__", "-DGPU_WAVE=32"]))
        for name in names:
            if name not in made:
                fail(f"{family}: the table names `{name}`, and its line makes no such kernel")
        found.update({name: made[name] for name in names})
    return found


def launchers(path):
    # Releases before 0.9.2 had none.
    if not path.exists():
        return {}
    text = re.sub(r"//[^\n]*", "", path.read_text())
    return {m[1]: count_parameters(text, m.end()) for m in re.finditer(r"pub fn (\w+)\(", text)}


def our_launchers():
    """Our ffi.rs makes most launchers by macros: their arguments are those of the macro's function."""
    text = (OURS / "src" / "ffi.rs").read_text()
    found = {m[1]: count_parameters(text, m.end()) for m in re.finditer(r'extern "C" fn (\w+)\(', text)}
    for macro in re.finditer(r"macro_rules! (\w+) \{(.*?)\n\}\n", text, re.S):
        function = re.search(r'extern "C" fn \$name\(', macro[2])
        used = re.search(rf"^{macro[1]}! \{{(.*?)\}}", text, re.S | re.M)
        if function and used:
            n = count_parameters(macro[2], function.end())
            found.update({name: n for name in re.findall(r"\blaunch_\w+", used[1])})
    return found


def asked_names(folders):
    """Names of kernels that Candle's Rust code may ask for: words in files that load kernels, alone or with a dtype."""
    words, names = set(), set()
    for path in itertools.chain.from_iterable(folder.glob("src/**/*.rs") for folder in folders):
        text = path.read_text()
        words.update(re.findall(r"""const KERNEL: &'static str = "(\w+)";""", text))
        words.update("b" + word for word in re.findall(r"^bin_op!\(\w+, (\w+)", text, re.M))
        words.update("u" + word for word in re.findall(r'^unary_op!\(\w+, "(\w+)"', text, re.M))
        if "get_or_load_func" in text:
            words.update(re.findall(r'"(\w+)"', text))
    names.update(words)
    names.update(f"{word}_{dtype}" for word in words for dtype in DTYPES)
    names.update(f"cast_{a}_{b}" for a in DTYPES for b in DTYPES)
    names.update(f"{word}{n}" for word in words if word.endswith("_q8_1_cuda") for n in range(1, 9))
    return names


CRATES = ("candle-core", "candle-nn", "candle-kernels")


def unpack(version, folder):
    """The crates of a release, from crates.io. Ends with 3 where it does not answer."""
    for name in CRATES:
        archive = pathlib.Path(folder) / f"{name}.crate"
        try:
            urllib.request.urlretrieve(f"https://static.crates.io/crates/{name}/{name}-{version}.crate", archive)
        except urllib.error.HTTPError as error:
            fail(f"{name} {version}: crates.io answers {error.code}", "is there such a release?")
        except OSError as error:
            print(f"candle_names: crates.io does not answer: {error}", file=sys.stderr)
            sys.exit(3)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")


def check(root, verbose):
    """Whether everything the sources in a folder ask for is there; says what is not."""
    crate = {}
    for name in CRATES:
        fits = lambda path: path.is_dir() and re.fullmatch(rf"{name}(-\d.*)?", path.name)
        choices = sorted(path for path in root.glob(f"{name}*") if fits(path))
        if not choices:
            fail(f"no {name} in {root}", "the folder of Candle's repository, or of its unpacked crates")
        crate[name] = choices[-1]

    asked = asked_names([crate["candle-core"], crate["candle-nn"]])
    theirs, ours = their_kernels(crate["candle-kernels"]), our_kernels()
    symbols, our_symbols = launchers(crate["candle-kernels"] / "src" / "ffi.rs"), our_launchers()
    # Behind features that we do not offer.
    symbols.pop("candle_launch_moe_align", None)
    wrong = []
    wanted = {name: n for name, n in theirs.items() if name in asked}
    for what, have, want in (("kernel", ours, wanted), ("launcher", our_symbols, symbols)):
        for name, n in sorted(want.items()):
            if name not in have:
                wrong.append(f"{what} {name}: missing")
            elif have[name] != n + (name in ONE_MORE):
                wrong.append(f"{what} {name}: {have[name]} parameters, Candle gives {n}")
    print(f"{crate['candle-core'].name}: {len(wanted)} of {len(theirs)} kernels asked for, {len(symbols)} launchers; "
          f"ours: {len(ours)} kernels, {len(our_symbols)} launchers")
    unasked = sorted(set(theirs) - set(wanted) - set(ours))
    if verbose:
        print(f"not asked for, and not ours: {' '.join(unasked) or 'none'}")
    for line in wrong:
        print(line)
    print(f"{len(wanted) + len(symbols) - len(wrong)} of {len(wanted) + len(symbols)} match")
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="+", metavar="RELEASE", help="a version on crates.io, or a folder of sources")
    parser.add_argument("--verbose", action="store_true", help="name their kernels that nobody asks for")
    options = parser.parse_args()
    is_good = True
    for release in options.releases:
        if re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", release) and not pathlib.Path(release).is_dir():
            with tempfile.TemporaryDirectory() as folder:
                unpack(release, folder)
                is_good &= check(pathlib.Path(folder), options.verbose)
        else:
            is_good &= check(pathlib.Path(release), options.verbose)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
