// The block structure of Markdown, as plain data: headings, lists, quotes, tables, code and displayed formulas.
//
// Linear in its input: no regular expression here can backtrack, containers nest at most MAX_DEPTH deep, and a search
// for the end of something that found none is not repeated. A half-written answer is valid input.

const MAX_DEPTH = 12;
const FORMULAS = [
  ["$$", "$$"],
  ["\\[", "\\]"],
];
// What may stand in an answer without marks around it; it is a formula by itself.
const ENVIRONMENTS = new Set([
  "align",
  "align*",
  "aligned",
  "equation",
  "equation*",
  "gather",
  "gather*",
  "cases",
  "matrix",
  "pmatrix",
  "bmatrix",
  "array",
]);

/** The blocks of a text. Each has the lines it was made from as `source`. */
export function parseBlocks(text) {
  const lines = text
    .replace(/\r\n?/g, "\n")
    .split("\n")
    .map((line) => (line.startsWith("\t") || line.startsWith(" ") ? withoutTabs(line) : line));
  return new Parser(lines, 0).parse();
}

class Parser {
  #lines;
  #depth;
  #at = 0;
  #out = [];
  #noEnd = new Map(); // mark -> line up to which it does not occur

  constructor(lines, depth) {
    this.#lines = lines;
    this.#depth = depth;
  }

  parse() {
    while (this.#at < this.#lines.length) {
      if (isBlank(this.#lines[this.#at])) {
        this.#at += 1;
        continue;
      }
      const from = this.#at;
      const block = this.#block(this.#lines[from]);
      block.source = this.#lines.slice(from, this.#at).join("\n");
      this.#out.push(block);
    }
    return this.#out;
  }

  #block(line) {
    const fence = fenceOf(line);
    if (fence) return this.#code(fence);
    const heading = headingOf(line);
    if (heading) {
      this.#at += 1;
      return heading;
    }
    if (isRule(line)) {
      this.#at += 1;
      return { type: "rule" };
    }
    const math = this.#math(line);
    if (math) return math;
    if (this.#canNest() && isQuote(line)) return this.#quote();
    if (this.#canNest() && itemOf(line)) return this.#list();
    const columns = this.#columns(this.#at);
    return columns ? this.#table(columns) : this.#paragraph();
  }

  #canNest() {
    return this.#depth < MAX_DEPTH;
  }

  /** Whether a line starts something other than a paragraph. */
  #isStart(line) {
    return Boolean(fenceOf(line) || headingOf(line) || isRule(line) || (this.#canNest() && (isQuote(line) || itemOf(line))));
  }

  #paragraph() {
    const from = this.#at;
    for (this.#at += 1; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#lines[this.#at];
      if (isBlank(line) || fenceOf(line) || headingOf(line) || isRule(line)) break;
      if (this.#canNest() && (isQuote(line) || canInterrupt(itemOf(line)))) break;
      if (startsFormula(line.trimStart()) || this.#columns(this.#at)) break;
    }
    return {
      type: "paragraph",
      text: this.#lines
        .slice(from, this.#at)
        .map((line) => line.trimStart())
        .join("\n")
        .trimEnd(),
    };
  }

  #code({ indent, mark, language }) {
    const from = this.#at + 1;
    let to = from;
    while (to < this.#lines.length && !isFenceEnd(this.#lines[to], mark)) to += 1;
    const text = this.#lines
      .slice(from, to)
      .map((line) => line.slice(Math.min(indent, indentOf(line))))
      .join("\n");
    this.#at = to + 1;
    return language === "math" ? { type: "math", text } : { type: "code", text, language };
  }

  /** A formula on lines of its own; it holds no blank line. */
  #math(line) {
    const start = line.trimStart();
    for (const [open, close] of FORMULAS) {
      if (start.startsWith(open)) return this.#formula(start.slice(open.length), close, "");
    }
    const environment = environmentOf(start);
    const end = `\\end{${environment}}`;
    return environment && this.#formula(start, end, end);
  }

  /** `keep`: what of the end belongs to the formula. */
  #formula(first, close, keep) {
    if ((this.#noEnd.get(close) ?? -1) >= this.#at) return undefined;
    const inner = [];
    for (let at = this.#at; at < this.#lines.length; at += 1) {
      const line = at === this.#at ? first : this.#lines[at];
      if (isBlank(line) && at > this.#at) break;
      const end = line.indexOf(close);
      if (end >= 0) {
        // Text after it: a formula within a paragraph. A full stop or comma is let go.
        if (line.slice(end + close.length).trim().length > 1) return undefined;
        this.#at = at + 1;
        return { type: "math", text: [...inner, line.slice(0, end) + keep].join("\n") };
      }
      inner.push(line);
      this.#noEnd.set(close, at);
    }
    return undefined;
  }

  #quote() {
    const inner = [];
    for (; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#lines[this.#at];
      if (isBlank(line)) break;
      if (isQuote(line)) inner.push(withoutQuote(line));
      else if (this.#isStart(line)) break;
      else inner.push(line);
    }
    return { type: "quote", children: new Parser(inner, this.#depth + 1).parse() };
  }

  #list() {
    const first = itemOf(this.#lines[this.#at]);
    const list = { type: "list", isOrdered: first.isOrdered, start: first.number, items: [] };
    while (this.#at < this.#lines.length) {
      const line = this.#lines[this.#at];
      const item = isRule(line) ? undefined : itemOf(line);
      if (!item || item.isOrdered !== first.isOrdered) break;
      if (item.indent < first.indent || item.indent > first.indent + 1) break;
      this.#at += 1;
      list.items.push(new Parser(this.#itemLines(item), this.#depth + 1).parse());
      while (this.#at + 1 < this.#lines.length && isBlank(this.#lines[this.#at]) && itemOf(this.#lines[this.#at + 1]))
        this.#at += 1;
    }
    return list;
  }

  /** The item goes on while lines are indented under it, or are plain text right after it. */
  #itemLines(item) {
    const inner = [withBox(item.text)];
    for (; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#lines[this.#at];
      const indent = indentOf(line);
      if (isBlank(line)) {
        const next = this.#lines[this.#at + 1];
        if (next === undefined || isBlank(next) || indentOf(next) <= item.indent) break;
        inner.push("");
      } else if (indent > item.indent) inner.push(line.slice(Math.min(item.width, indent)));
      else if (isBlank(this.#lines[this.#at - 1]) || this.#isStart(line)) break;
      else inner.push(line);
    }
    return inner;
  }

  /** The alignments of a table's columns, where one starts at this line. */
  #columns(at) {
    const [head, line] = [this.#lines[at], this.#lines[at + 1]];
    if (!head.includes("|") || line === undefined || !line.includes("-")) return undefined;
    const align = cellsOf(line).map((cell) => {
      if (!/^:?-+:?$/.test(cell)) return undefined;
      return cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left";
    });
    return align.includes(undefined) || cellsOf(head).length !== align.length ? undefined : align;
  }

  #table(align) {
    const row = (line) => {
      const cells = cellsOf(line);
      return align.map((_, column) => cells[column] ?? "");
    };
    const head = row(this.#lines[this.#at]);
    const rows = [];
    for (this.#at += 2; this.#at < this.#lines.length; this.#at += 1) {
      const line = this.#lines[this.#at];
      if (isBlank(line) || !line.includes("|")) break;
      rows.push(row(line));
    }
    return { type: "table", align, head, rows };
  }
}

function isBlank(line) {
  return line.trim() === "";
}

function indentOf(line) {
  let at = 0;
  while (line[at] === " ") at += 1;
  return at;
}

/** Tabs that indent are four spaces each. */
function withoutTabs(line) {
  let at = 0;
  while (line[at] === " " || line[at] === "\t") at += 1;
  return line.slice(0, at).replaceAll("\t", "    ") + line.slice(at);
}

function fenceOf(line) {
  const indent = indentOf(line);
  const sign = line[indent];
  if (indent > 3 || (sign !== "`" && sign !== "~")) return undefined;
  let end = indent;
  while (line[end] === sign) end += 1;
  if (end - indent < 3) return undefined;
  const info = line.slice(end).trim();
  if (sign === "`" && info.includes("`")) return undefined;
  return { indent, mark: line.slice(indent, end), language: info.split(/\s/, 1)[0] };
}

function isFenceEnd(line, mark) {
  const text = line.trim();
  if (!text.startsWith(mark)) return false;
  for (let at = mark.length; at < text.length; at += 1) if (text[at] !== mark[0]) return false;
  return true;
}

function headingOf(line) {
  const indent = indentOf(line);
  let end = indent;
  while (line[end] === "#" && end - indent < 7) end += 1;
  const level = end - indent;
  if (indent > 3 || level < 1 || level > 6 || (end < line.length && line[end] !== " ")) return undefined;
  const text = line.slice(end).trim();
  let last = text.length;
  while (text[last - 1] === "#") last -= 1;
  const isClosed = last === 0 || text[last - 1] === " ";
  return { type: "heading", level, text: isClosed ? text.slice(0, last).trimEnd() : text };
}

function isRule(line) {
  const text = line.trim();
  const sign = text[0];
  if (indentOf(line) > 3 || (sign !== "-" && sign !== "*" && sign !== "_")) return false;
  let count = 0;
  for (const here of text) {
    if (here === sign) count += 1;
    else if (here !== " ") return false;
  }
  return count >= 3;
}

function isQuote(line) {
  const indent = indentOf(line);
  return indent <= 3 && line[indent] === ">";
}

function withoutQuote(line) {
  const at = line.indexOf(">") + 1;
  return line.slice(line[at] === " " ? at + 1 : at);
}

function itemOf(line) {
  const indent = indentOf(line);
  let end = indent;
  while (end - indent < 9 && line[end] >= "0" && line[end] <= "9") end += 1;
  const isOrdered = end > indent;
  const sign = line[end];
  if (isOrdered ? sign !== "." && sign !== ")" : sign !== "-" && sign !== "*" && sign !== "+") return undefined;
  end += 1;
  if (end < line.length && line[end] !== " ") return undefined;
  const rest = line.slice(end);
  const space = indentOf(rest);
  return {
    indent,
    isOrdered,
    number: isOrdered ? Number(line.slice(indent, end - 1)) : undefined,
    width: end + Math.min(Math.max(space, 1), 4),
    text: rest.slice(space),
  };
}

function canInterrupt(item) {
  return item && (item.isOrdered ? item.number === 1 : item.text !== "");
}

function withBox(text) {
  if (text.startsWith("[ ] ")) return `☐ ${text.slice(4)}`;
  if (text.startsWith("[x] ") || text.startsWith("[X] ")) return `☑ ${text.slice(4)}`;
  return text;
}

function environmentOf(line) {
  if (!line.startsWith("\\begin{")) return undefined;
  const name = line.slice(7, line.indexOf("}"));
  return ENVIRONMENTS.has(name) ? name : undefined;
}

function startsFormula(line) {
  return FORMULAS.some(([open]) => line.startsWith(open)) || environmentOf(line) !== undefined;
}

/** The cells of a table's line. A bar after a backslash, or within code, is text. */
function cellsOf(line) {
  const text = line.trim();
  const cells = [];
  let cell = "";
  let from = text[0] === "|" ? 1 : 0;
  let isCode = false;
  for (let at = from; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") {
      cell += text.slice(from, at);
      from = at + 1;
      at += 1;
    } else if (text[at] === "`") isCode = !isCode && text.indexOf("`", at + 1) > 0;
    else if (text[at] === "|" && !isCode) {
      cells.push((cell + text.slice(from, at)).trim());
      cell = "";
      from = at + 1;
    }
  }
  const last = cell + text.slice(from);
  if (last.trim() || !text.endsWith("|")) cells.push(last.trim());
  return cells;
}
