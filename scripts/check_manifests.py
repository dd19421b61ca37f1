#!/usr/bin/env python3
"""The Kubernetes manifests against Kubernetes' own JSON schemas, strictly: a field that no schema knows is an error. The
schemas come with kubernetes-validate from PyPI.

  scripts/check_manifests.py [FILE...]
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import fetch  # noqa: E402

PACKAGES = ["kubernetes-validate==1.37.0"]
# The oldest release that clouds still offer, and the newest whose schemas there are.
VERSIONS = ["1.30", "1.37"]
# One that is wrong must be found, or the check proves nothing.
WRONG = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: http}], portz: 1}\n"


def validate(python: Path, version: str, manifest: str) -> subprocess.CompletedProcess:
    command = [python.parent / "kubernetes-validate", "--strict", "--kubernetes-version", version, "--quiet", manifest]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def main() -> int:
    files = sys.argv[1:] or sorted(map(str, (HERE.parent / "packaging/kubernetes").glob("*.yaml")))
    python = fetch.python(PACKAGES)
    n_failed = 0
    for version in VERSIONS:
        for file in files:
            done = validate(python, version, file)
            n_failed += done.returncode != 0
            print(f"{file}: Kubernetes {version}: {'ok' if done.returncode == 0 else done.stdout + done.stderr}")
    wrong = fetch.cache() / "wrong.yaml"
    wrong.write_text(WRONG)
    if validate(python, VERSIONS[-1], str(wrong)).returncode == 0:
        print("a wrong manifest was not found")
        n_failed += 1
    wrong.unlink()
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
