// Markdown to DOM nodes. What a model writes is never parsed as HTML: text becomes text nodes, so an answer cannot
// run a script, and a half-written answer always renders.

import { highlight } from "./highlight.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

/** Renders `source` into a fragment. */
export function render(source) {
  const out = document.createDocumentFragment();
  blocks(source.replace(/\r\n?/g, "\n").split("\n"), out);
  return out;
}

function blocks(lines, out) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    let found;
    if ((found = FENCE.exec(line))) at = fence(lines, at, found, out);
    else if ((found = HEADING.exec(line))) {
      out.append(inlineInto(element(`h${Math.min(found[1].length + 1, 6)}`), found[2]));
      at += 1;
    } else if (RULE.test(line)) {
      out.append(element("hr"));
      at += 1;
    } else if (QUOTE.test(line)) at = quote(lines, at, out);
    else if (ITEM.test(line)) at = list(lines, at, out);
    else if (line.includes("|") && TABLE_LINE.test(lines[at + 1] ?? "")) at = table(lines, at, out);
    else at = paragraph(lines, at, out);
  }
}

function isBlockStart(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function paragraph(lines, at, out) {
  const from = at;
  do at += 1;
  while (at < lines.length && lines[at].trim() && !isBlockStart(lines[at]));
  out.append(inlineInto(element("p"), lines.slice(from, at).join("\n")));
  return at;
}

function fence(lines, at, [, indent, mark, language], out) {
  const from = at + 1;
  let to = from;
  const isEnd = (line) => line.trim().startsWith(mark) && !line.trim().slice(mark.length).replaceAll(mark[0], "");
  while (to < lines.length && !isEnd(lines[to])) to += 1;
  const text = lines
    .slice(from, to)
    .map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line))
    .join("\n");
  out.append(codeBlock(text, language));
  return to + 1;
}

function codeBlock(text, language) {
  const code = element("code");
  highlight(code, text, language);
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.className = "copy";
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "No access";
    }
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const head = element("div", element("span", language || "text"), copy);
  head.className = "code-head";
  const pre = element("pre", code);
  pre.tabIndex = 0;
  const block = element("div", head, pre);
  block.className = "code";
  return block;
}

function quote(lines, at, out) {
  const inner = [];
  while (at < lines.length && lines[at].trim() && (QUOTE.test(lines[at]) || !isBlockStart(lines[at]))) {
    inner.push(lines[at].replace(QUOTE, ""));
    at += 1;
  }
  const made = element("blockquote");
  blocks(inner, made);
  out.append(made);
  return at;
}

function list(lines, at, out) {
  const [, firstIndent, firstMark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(firstMark);
  const made = element(isOrdered ? "ol" : "ul");
  if (isOrdered && parseInt(firstMark, 10) !== 1) made.start = parseInt(firstMark, 10);
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length > firstIndent.length + 1 || /\d/.test(found[2]) !== isOrdered) break;
    if (found[1].length < firstIndent.length) break;
    const width = found[1].length + found[2].length + Math.min(found[3].length || 1, 4);
    const inner = [found[4].replace(/^\[([ xX])\] /, (_, mark) => (mark === " " ? "☐ " : "☑ "))];
    at += 1;
    // The item goes on while lines are indented under it, or are plain text right after it.
    while (at < lines.length) {
      const line = lines[at];
      const indent = /^\s*/.exec(line)[0].length;
      if (!line.trim()) {
        const next = lines[at + 1];
        if (next === undefined || !next.trim() || /^\s*/.exec(next)[0].length <= found[1].length) break;
        inner.push("");
      } else if (indent > found[1].length) inner.push(line.slice(Math.min(width, indent)));
      else if (isBlockStart(line)) break;
      else inner.push(line);
      at += 1;
    }
    const item = element("li");
    blocks(inner, item);
    // A tight item holds its text directly.
    if (item.childElementCount && item.firstElementChild.tagName === "P") item.firstElementChild.replaceWith(...item.firstElementChild.childNodes);
    made.append(item);
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  out.append(made);
  return at;
}

function cells(line) {
  const trimmed = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return trimmed.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, at, out) {
  const align = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left",
  );
  const row = (line, kind) => {
    const made = element("tr");
    const texts = cells(line);
    for (let column = 0; column < align.length; column += 1) {
      const cell = inlineInto(element(kind), texts[column] ?? "");
      if (align[column] !== "left") cell.className = align[column];
      made.append(cell);
    }
    return made;
  };
  const head = element("thead", row(lines[at], "th"));
  const body = element("tbody");
  at += 2;
  while (at < lines.length && lines[at].trim() && lines[at].includes("|")) {
    body.append(row(lines[at], "td"));
    at += 1;
  }
  const scroller = element("div", element("table", head, body));
  scroller.className = "table";
  out.append(scroller);
  return at;
}

// Inline marks, tried in this order at each place where one may start.
const INLINE = [
  [/^\\([\\`*_{}[\]()#+\-.!~|>])/, (m) => document.createTextNode(m[1])],
  [/^(`+)([\s\S]*?[^`])\1(?!`)/, (m) => element("code", m[2].replace(/^ (.+) $/, "$1"))],
  [/^!?\[([^\]\n]*)\]\(\s*(<[^>\n]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"\n]*")?\s*\)/, link],
  [/^<((?:https?:\/\/|mailto:)[^>\s]+)>/, (m) => anchor(m[1], [m[1]])],
  [/^(\*\*|__)(?=\S)([\s\S]*?\S)\1(?![*_])/, (m) => inlineInto(element("strong"), m[2])],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (m) => inlineInto(element("del"), m[1])],
  [/^\*(?=[^\s*])([\s\S]*?[^\s*])\*(?!\*)/, (m) => inlineInto(element("em"), m[1])],
  [/^_(?=[^\s_])([\s\S]*?[^\s_])_(?![\w_])/, (m, before) => (/\w$/.test(before) ? null : inlineInto(element("em"), m[1]))],
  [/^https?:\/\/[^\s<>"']*[^\s<>"'.,;:!?)\]]/, (m, before) => (/\w$/.test(before) ? null : anchor(m[0], [m[0]]))],
  [/^(?: {2,}|\\)\n/, () => element("br")],
];

function link(match) {
  const address = match[2].replace(/^<|>$/g, "");
  const label = match[1] || address;
  return anchor(address, [inlineInto(document.createDocumentFragment(), label)]) ?? document.createTextNode(label);
}

function anchor(address, children) {
  // Only addresses that cannot run anything.
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return null;
  const made = element("a", ...children);
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

const MARKS = /[\\`![<*_~h \n]/;

function inlineInto(parent, source) {
  let text = "";
  let rest = source;
  const flush = () => {
    if (text) parent.append(text);
    text = "";
  };
  while (rest) {
    let made = null;
    let length = 0;
    if (MARKS.test(rest[0])) {
      for (const [pattern, build] of INLINE) {
        const found = pattern.exec(rest);
        if (!found) continue;
        made = build(found, source.slice(0, source.length - rest.length));
        if (made) {
          length = found[0].length;
          break;
        }
      }
    }
    if (made) {
      flush();
      parent.append(made);
      rest = rest.slice(length);
    } else {
      text += rest[0];
      rest = rest.slice(1);
    }
  }
  flush();
  return parent;
}
