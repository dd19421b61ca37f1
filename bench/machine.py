"""What a figure depends on: processor, memory and how fast it can be read, versions, date."""

import datetime
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TELLING = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8"]


def cpuinfo(field: str) -> str:
    found = re.search(rf"^{field}\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1).strip() if found else ""


def cpu_flags() -> list[str]:
    return sorted(cpuinfo("flags").split())


def first_line(command: list) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.partition("\n")[0]
    except OSError:
        return "not there"


def describe() -> dict:
    total = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpuinfo("model name"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_flags": [flag for flag in TELLING if flag in cpu_flags()],
        "memory_bytes": int(total.group(1)) * 1024 if total else None,
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "compiler": first_line(["c++", "--version"]),
        "rustc": first_line(["rustc", "--version"]),
        "commit": first_line(["git", "rev-parse", "--short", "HEAD"]),
    }


def read_bandwidth(n_threads: int, prefix: list) -> float:
    """Bytes a second that the threads read together from main memory."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "read_bandwidth"
        subprocess.run(["cc", "-O3", "-march=native", "-pthread", HERE / "read_bandwidth.c", "-o", program], check=True)
        out = subprocess.run([*prefix, program, str(n_threads)], check=True, capture_output=True, text=True).stdout
    return float(out)
