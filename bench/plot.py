#!/usr/bin/env python3
"""Draws the speed tables of docs/developer/performance.md as one SVG: bars of roci's tokens a second over llama.cpp's.

  bench/plot.py [docs/developer/performance.md] [docs/images/performance.svg]

Every table with the columns `roci` and `llama.cpp` is drawn, under the heading it stands in; the other columns before
those two name the row. Where a table has a `limit` column, a tick shows how far the limit is. Tables whose headings end
with `(llama.cpp)` hold both in a cell: `roci (llama.cpp)`, or several as `1 / 2 (3 / 4)`. No library is needed.
`--check` ends with 1 where the file is not what would be drawn now.
"""

import argparse
import re
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# The longest bar, in times llama.cpp's speed.
LONGEST = 5.0
WIDTH, LEFT, RIGHT, ROW, HEAD = 860, 300, 90, 20, 44
FAST, SLOW, GREY, INK = "#2a7f62", "#b5533c", "#c9c9c9", "#222"


class Row(NamedTuple):
    name: str
    roci: float
    peer: float
    limit: float | None


def number(cell: str) -> float | None:
    found = re.search(r"\d[\d,]*(?:\.\d+)?", cell.replace("*", ""))
    return float(found.group().replace(",", "")) if found else None


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


PAIR = "(llama.cpp)"


def pairs(header: list[str], row: list[str]) -> list[Row]:
    """Rows of a table whose cells hold both figures."""
    found = []
    for title, cell in zip(header[1:], row[1:]):
        ours, _, theirs = cell.replace("*", "").partition("(")
        if not title.endswith(PAIR) or not theirs:
            continue
        title = title.removesuffix(PAIR).strip()
        # `8 / 32 / 128 sequences`: a bar for each, named by its part of the heading.
        unit = title.rsplit(" ", 1)[-1] if "/" in title else ""
        titles = [part.strip() for part in title.removesuffix(unit).split("/")]
        for part, a, b in zip(titles, ours.split("/"), theirs.split("/")):
            if number(a) and number(b):
                found.append(Row(f"{row[0]} · {part} {unit}".strip(), number(a), number(b), None))
    return found


def tables(text: str) -> list[tuple[str, list[Row]]]:
    """(heading, rows) of each table that can be drawn."""
    heading, header, found = "", None, []
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            header = None
            continue
        row = cells(line)
        if header is None:
            header = [cell.lower() for cell in row]
            if {"roci", "llama.cpp"} <= set(header) or any(cell.endswith(PAIR) for cell in header):
                found.append((heading, []))
            continue
        if any(cell.endswith(PAIR) for cell in header) and not set(line) <= set("|-: "):
            found[-1][1].extend(pairs(header, row))
            continue
        if not {"roci", "llama.cpp"} <= set(header) or set(line) <= set("|-: "):
            continue
        at = {name: number(row[i]) for i, name in enumerate(header) if i < len(row)}
        n_names = min(header.index("roci"), header.index("llama.cpp"))
        if at.get("roci") and at.get("llama.cpp"):
            name = " · ".join(row[:n_names]).replace("*", "")
            found[-1][1].append(Row(name, at["roci"], at["llama.cpp"], at.get("limit")))
    return [(heading, rows) for heading, rows in found if rows]


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def draw(groups: list[tuple[str, list[Row]]]) -> str:
    ratios = [row.roci / row.peer for _, rows in groups for row in rows]
    # What is beyond is drawn cut, with its figure: one type that llama.cpp has no kernel for would flatten all others.
    most = min(max([2.0, *ratios]), LONGEST) * 1.05
    scale = (WIDTH - LEFT - RIGHT) / most
    out, y = [], 34
    out.append(text(12, 20, "roci against llama.cpp, tokens a second (1x is llama.cpp)", more='font-size="15"'))
    for heading, rows in groups:
        y += HEAD - ROW
        out.append(text(12, y, heading, more='font-weight="bold"'))
        y += 8
        top = y
        for row in rows:
            ratio = row.roci / row.peer
            middle, length = y + ROW / 2, min(ratio, LONGEST) * scale
            out.append(text(LEFT - 8, middle + 4, row.name, "end"))
            colour = FAST if ratio >= 1 else SLOW
            out.append(
                f'<rect x="{LEFT}" y="{y + 3:.1f}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>'
            )
            out.append(text(LEFT + length + 5, middle + 4, f"{ratio:.2f}x  {row.roci:,.0f}"))
            if row.limit and row.limit / row.peer <= most:
                x = LEFT + row.limit / row.peer * scale
                out.append(f'<line x1="{x:.1f}" y1="{y + 1}" x2="{x:.1f}" y2="{y + ROW - 1}" stroke="{INK}"/>')
            y += ROW
        x = LEFT + scale
        out.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{y}" stroke="{GREY}" stroke-dasharray="3 3"/>')
    body = "\n".join(out)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 14}" viewBox="0 0 {WIDTH} {y + 14}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", default=ROOT / "docs/developer/performance.md")
    parser.add_argument("target", type=Path, nargs="?", default=ROOT / "docs/images/performance.svg")
    parser.add_argument("--check", action="store_true", help="draw nothing; is the file up to date?")
    args = parser.parse_args()
    groups = tables(args.source.read_text())
    if not groups:
        print(f"plot: error: {args.source} has no table with the columns roci and llama.cpp", file=sys.stderr)
        return 1
    drawn = draw(groups)
    if args.check:
        is_same = args.target.is_file() and args.target.read_text() == drawn
        if not is_same:
            print(f"plot: error: {args.target} is not what {args.source} says", file=sys.stderr)
            print("hint: bench/plot.py draws it", file=sys.stderr)
        return 0 if is_same else 1
    args.target.write_text(drawn)
    print(f"{args.target}: {sum(len(rows) for _, rows in groups)} bars from {len(groups)} tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
