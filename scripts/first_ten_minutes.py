#!/usr/bin/env python3
"""Writes docs/user/first-ten-minutes.md: what a new user types, and what `roci` really answers.

Usage: scripts/first_ten_minutes.py ROCI [--chroot FOLDER] > docs/user/first-ten-minutes.md

ROCI is the binary. The commands run in a fresh home; with --chroot inside a bare system (made by debootstrap, for
example), into which the binary is copied. The model comes from a package registry, by the settings of pip.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

# What to say, and what to type then. `None` prints the words alone.
STEPS = [
    ("Is it installed, and which devices does it find?", "roci --version"),
    (None, "roci devices"),
    ("What keeps a GPU from working? (The exit status is 1 if something does.)", "roci doctor"),
    ("What can be downloaded?", "roci list --all | head -12"),
    ("A mistyped name:", "roci run smolm2 hello"),
    ("The smallest model, and a first question. The answer goes to standard output, the statistics to standard error.",
     'roci run smollm2 --seed 1 -n 60 "Why is the sky blue? One sentence."'),
    ("Text from a pipe is put before the question:",
     "printf 'apples 3\\npears 5\\n' | roci run smollm2 --seed 1 -n 30 'Which fruits are listed?'"),
    ("What is installed now, and its details:", "roci list"),
    (None, "roci show smollm2"),
    ("A custom model, from a Modelfile:",
     "printf 'FROM smollm2\\nPARAMETER temperature 0\\nPARAMETER num_predict 40\\n"
     "SYSTEM \"You answer like a pirate.\"\\n' > Modelfile"),
    (None, "roci create pirate"),
    (None, 'roci run pirate "Who are you?"'),
    ("An answer in a format that a program can read:",
     "roci run smollm2 --temperature 0 --regex '[0-9]{4}' -q 'In which year did the Second World War end?'"),
    ("Default settings; a misspelt one is reported:",
     "mkdir -p ~/.config/roci && printf '[run]\\ntemprature = 0.2\\n' > ~/.config/roci/config.toml"),
    (None, "roci run smollm2 hello"),
    ("A server in the background, and the models it has in memory:",
     "roci serve smollm2 --port 8099 2> serve.log & until roci ps --server 127.0.0.1:8099 2> /dev/null; do sleep 0.2; done"
     "; kill $!; wait $!"),
    ("Cleaning up:", "rm ~/.config/roci/config.toml; roci rm pirate; roci rm --all"),
]

HEAD = """# The first ten minutes

What a new user types and what `roci` answers, on {system}. This page is the output of
`scripts/first_ten_minutes.py`: nothing here was typed by hand. {note}
"""


def run(command, home, chroot):
    env = {"HOME": "/root" if chroot else str(home), "PATH": "/opt/roci:/usr/bin:/bin", "COLUMNS": "100", "TERM": "dumb"}
    if not chroot:
        env["PATH"] = f"{home}/bin:/usr/bin:/bin"
    for name in ("PIP_INDEX_URL", "PIP_CERT", "PIP_CONFIG_FILE", "HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE"):
        if name in os.environ:
            env[name] = os.environ[name]
    argv = ["bash", "-c", f"cd; {command}"]
    if chroot:
        # Looked up here: the PATH above is the one inside.
        argv = [shutil.which("chroot") or "/usr/sbin/chroot", str(chroot), "/bin/bash", *argv[1:]]
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode("utf-8", "replace")
    # Whose machine it was is nobody's business.
    text = text.replace(str(home), "~").replace("/root", "~")
    release = os.uname().release
    text = text.replace(release, ".".join(release.split(".")[:2]))
    return re.sub(r"(from )[^\s]*:[0-9]+\b", r"\1the registry", text), done.returncode


def system_of(root):
    name = "Linux"
    for line in (root / "etc/os-release").read_text().splitlines():
        if line.startswith("PRETTY_NAME="):
            name = line.split("=", 1)[1].strip('"')
    return name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roci", type=pathlib.Path)
    parser.add_argument("--chroot", type=pathlib.Path)
    parser.add_argument("--note", default="", help="a sentence to add to the beginning")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        target = args.chroot / "opt/roci" if args.chroot else home / "bin"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(args.roci, target / "roci")
        system = system_of(args.chroot or pathlib.Path("/"))
        bare = f"a bare {system} with nothing else installed" if args.chroot else system
        title, words = HEAD.format(system=bare, note=args.note).split("\n\n")
        print(f"{title}\n\n{textwrap.fill(words, 120)}\n")
        for words, command in STEPS:
            if words:
                print(f"{words}\n")
            text, status = run(command, home, args.chroot)
            print(f"```console\n$ {command}\n{text.rstrip()}".rstrip() + "\n```\n")
            if status not in (0, 1):
                print(f"{command}: status {status}", file=sys.stderr)
                sys.exit(1)


main()
