// The page's Markdown reader, without a browser: what it makes of a text, beside markdown-it's reading of the same text,
// and that its work grows with the length of its input and no faster.
//
//   node markdown.test.mjs FOLDER
//
// FOLDER holds blocks.js and inline.js (crates/server/src/web).
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import MarkdownIt from "markdown-it";

const folder = process.argv[2] ?? "crates/server/src/web";
const load = (name) => import(`data:text/javascript;base64,${readFileSync(join(folder, name)).toString("base64")}`);
const { parseBlocks } = await load("blocks.js");
const { parseInline } = await load("inline.js");

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

function inlineHtml(node) {
  if (typeof node === "string") return escape(node);
  const inner = () => node.children.map(inlineHtml).join("");
  switch (node.type) {
    case "break":
      return "<br>\n";
    case "code":
      return `<code>${escape(node.text)}</code>`;
    case "math":
      return `<math>${escape(node.text)}</math>`;
    case "link":
      return `<a href="${escape(node.address)}">${inner()}</a>`;
    default: {
      const tag = node.type === "del" ? "s" : node.type;
      return `<${tag}>${inner()}</${tag}>`;
    }
  }
}

const inline = (text) => parseInline(text).map(inlineHtml).join("");

function blockHtml(node) {
  const all = (blocks) => blocks.map(blockHtml).join("");
  switch (node.type) {
    case "heading":
      return `<h${node.level}>${inline(node.text)}</h${node.level}>`;
    case "rule":
      return "<hr>";
    case "code":
      return `<pre><code${node.language ? ` class="language-${node.language}"` : ""}>${escape(node.text)}${node.text ? "\n" : ""}</code></pre>`;
    case "math":
      return `<math>${escape(node.text)}</math>`;
    case "quote":
      return `<blockquote>${all(node.children)}</blockquote>`;
    case "list": {
      const tag = node.isOrdered ? "ol" : "ul";
      const item = ([first, ...rest]) =>
        `<li>${first?.type === "paragraph" ? inline(first.text) + all(rest) : first ? all([first, ...rest]) : ""}</li>`;
      return `<${tag}${node.isOrdered && node.start !== 1 ? ` start="${node.start}"` : ""}>${node.items.map(item).join("")}</${tag}>`;
    }
    case "table": {
      const cell = (kind) => (text, column) =>
        `<${kind}${node.align[column] === "left" ? "" : ` style="text-align:${node.align[column]}"`}>${inline(text)}</${kind}>`;
      const row = (cells, kind) => `<tr>${cells.map(cell(kind)).join("")}</tr>`;
      const body = node.rows.length ? `<tbody>${node.rows.map((cells) => row(cells, "td")).join("")}</tbody>` : "";
      return `<table><thead>${row(node.head, "th")}</thead>${body}</table>`;
    }
    default:
      return `<p>${inline(node.text)}</p>`;
  }
}

const html = (text) => parseBlocks(text).map(blockHtml).join("");

/** markdown-it puts new lines between blocks, where they mean nothing. */
const squeeze = (text) =>
  text
    .replace(/\n\s*(?=<(?:[uo]l|li|p|pre|table|t[hdr]|thead|tbody|h\d|hr|blockquote|\/))/g, "")
    .replace(/>\s*\n\s*</g, "><")
    .replace(/<br>\s*/g, "<br>")
    .trim();

const SAME = [
  "Hello",
  "two\nlines",
  "# One\n\n### Three ###\n\n####### seven",
  "a *b* **c** ***d*** _e_ __f__ ~~g~~",
  "**bold with `code` and *em* inside**",
  "snake_case_word and __init__ stay, 2 * 3 * 4 too",
  "*a **b** c* and **a *b* c**",
  "a `b ``c` d ``e`f``",
  "not `closed",
  '[a](https://b.c) [d *e*](https://f.g "title") [h](<https://i.j/k l>)',
  "[wiki](https://en.wikipedia.org/wiki/A_(b)) after",
  "[not a link] [nor](this",
  "<https://a.b/c?d=e&f=g>",
  "line one  \nline two\\\nline three",
  "\\*not em\\* \\# [x\\] 1\\. \\\\",
  "- a\n- b\n- c",
  "- a\n  - b\n    - c\n- d",
  "1. a\n2. b\n   more of b\n3. c",
  "7. seven\n8. eight",
  "* a\n\n  second paragraph\n",
  "- a\n\n  ```py\n  x = 1\n  ```",
  "text\n- a\n- b",
  "text\n3. not a list",
  "> a\n> b\n\nc",
  "> a\nlazy",
  "> > nested\n> back",
  "> - a\n> - b",
  "```rust\nfn f() {}\n```",
  "~~~\n```\n~~~",
  "````md\n```\ninner\n```\n````",
  "```\nnot closed",
  "| a | b |\n|---|--:|\n| 1 | 2 |\n| 3 | **4** |",
  "a | b\n--|:-:\n1 | `x`",
  "text\n\n| a \\| b | c |\n|---|---|\n| d | e |\n\nafter",
  "---\n\n***\n\n_ _ _",
  "<b>not html</b> &amp <script>alert(1)</script>",
  "![picture](https://a.b/c.png)",
  "**Note:** this\n\n1. **First**: `a`\n2. **Second**: b",
  "a * b\n\n**unclosed and *half",
];

const reference = new MarkdownIt({ html: false, linkify: false, typographer: false });
let count = 0;
for (const text of SAME) {
  // Ours decodes no entities, shows pictures as links and keeps items tight; theirs is brought to that.
  const theirs = squeeze(
    reference
      .render(text)
      .replace(/<img src="([^"]*)" alt="([^"]*)">/g, '<a href="$1">$2</a>')
      .replaceAll(/ title="[^"]*"/g, ""),
  )
    .replace(/<li><p>(.*?)<\/p>/gs, "<li>$1")
    .replaceAll("%20", " ");
  assert.equal(squeeze(html(text)), theirs, `of ${JSON.stringify(text)}`);
  count += 1;
}

// What CommonMark has not, or has otherwise.
const OURS = [
  ["\\(a_1 * b_2\\) and \\[\\frac{1}{2}\\]", "<p><math>a_1 * b_2</math> and <math>\\frac{1}{2}</math></p>"],
  ["Euler: $e^{i\\pi} + 1 = 0$.", "<p>Euler: <math>e^{i\\pi} + 1 = 0</math>.</p>"],
  ["It costs $5 and then $10, or US$ 3.", "<p>It costs $5 and then $10, or US$ 3.</p>"],
  ["$$\na\n+ b\n- c\n$$", "<math>\na\n+ b\n- c\n</math>"],
  ["\\[\n# x\n\\]", "<math>\n# x\n</math>"],
  ["Then\n\\[x\\]\nholds", "<p>Then</p><math>x</math><p>holds</p>"],
  ["\\begin{align}\na &= b \\\\\n- c\n\\end{align}", "<math>\\begin{align}\na &amp;= b \\\\\n- c\n\\end{align}</math>"],
  ["half \\(a", "<p>half \\(a</p>"],
  ["$$\nhalf", "<p>$$\nhalf</p>"],
  ["`$a$` and ```x```", "<p><code>$a$</code> and <code>x</code></p>"],
  ["```math\nx\n```", "<math>x</math>"],
  [
    "see https://a.b/c(d). And (https://e.f)!",
    '<p>see <a href="https://a.b/c(d)">https://a.b/c(d)</a>. And (<a href="https://e.f">https://e.f</a>)!</p>',
  ],
  ["[x](javascript:alert(1)) [y](data:text/html,z)", "<p>x y</p>"],
  ["[https://a.b](https://c.d)", '<p><a href="https://c.d">https://a.b</a></p>'],
  ["- [ ] a\n- [x] b", "<ul><li>☐ a</li><li>☑ b</li></ul>"],
  ["**中文。**后", "<p><strong>中文。</strong>后</p>"],
  ["a<br>b", "<p>a<br>\nb</p>"],
  ["```mermaid\ngraph TD\n```", '<pre><code class="language-mermaid">graph TD\n</code></pre>'],
];
for (const [text, expected] of OURS) {
  assert.equal(html(text), expected, `of ${JSON.stringify(text)}`);
  count += 1;
}

// Every beginning of an answer can be read.
const answer = "# T\n\n1. **a** `b\n\n```rust\nfn f() {\n```\n| a | b |\n|--|--|\n> [x](http://y \\( z $$ \\begin{align} ~~w";
for (let n = 0; n <= answer.length; n += 1) html(answer.slice(0, n));

// Hostile input. Sixteen times as much takes sixteen times as long, or a few times that when garbage is collected; an
// algorithm with a square in it would take 256 times as long. CPU time, the best of several runs.
const SHORT = 8192;
const HOSTILE = {
  "heading and spaces": (n) => `# a${" ".repeat(n)}b`,
  quotes: (n) => ">".repeat(n),
  "quotes with spaces": (n) => "> ".repeat(n),
  "quoted lines": (n) => "> a\n".repeat(n / 4),
  "nested lists": (n) => Array.from({ length: Math.sqrt(n) }, (_, i) => `${"  ".repeat(i)}- a`).join("\n"),
  bullets: (n) => "- ".repeat(n / 2),
  "items without text": (n) => "-\n".repeat(n / 2),
  stars: (n) => "*".repeat(n),
  "open emphasis": (n) => "*a **b ".repeat(n / 7),
  "open and closed emphasis": (n) => "*a_ ".repeat(n / 4),
  "emphasis in words": (n) => "a**b_c*d__".repeat(n / 10),
  backticks: (n) => "`".repeat(n),
  "backticks of all lengths": (n) => Array.from({ length: Math.sqrt(n) }, (_, i) => "`".repeat(i + 1)).join(" "),
  brackets: (n) => "[".repeat(n),
  "closed brackets": (n) => "[a]".repeat(n / 3),
  "links without end": (n) => "[a](b".repeat(n / 5),
  "links without end, with angles": (n) => "[a](<b".repeat(n / 6),
  "links with titles without end": (n) => '[a](b "c'.repeat(n / 8),
  "nested links": (n) => `${"[".repeat(n / 2)}${"](a)".repeat(n / 8)}`,
  angles: (n) => "<https://".repeat(n / 9),
  addresses: (n) => "http://".repeat(n / 7),
  "addresses and stops": (n) => "http://a.,:".repeat(n / 11),
  dollars: (n) => "$a ".repeat(n / 3),
  "pairs of dollars": (n) => "$$a\n".repeat(n / 4),
  "escaped dollars": (n) => "$\\$".repeat(n / 3),
  "open formulas": (n) => "\\(a ".repeat(n / 4),
  "open formulas on lines": (n) => "\\[\n".repeat(n / 3),
  "open environments": (n) => "\\begin{align}\n".repeat(n / 14),
  "fence that is none": (n) => `\`\`\`${"a".repeat(n)}\``,
  "line of a table": (n) => `a|b\n${" ".repeat(n)}x`,
  "table of bars": (n) => `${"|".repeat(n / 2)}\n${"|-".repeat(n / 4)}`,
  "tables without end": (n) => "a|b\n".repeat(n / 4),
  "rule that is none": (n) => `${"- ".repeat(n / 2)}x`,
  spaces: (n) => " ".repeat(n),
  "spaces before lines": (n) => `a${" ".repeat(n)}\n`.repeat(2),
  backslashes: (n) => "\\".repeat(n),
  tabs: (n) => "\t".repeat(n),
};
/** Reads all of a text, and makes nothing of it. */
const read = (blocks) => {
  for (const { text, type, children, items, head, rows } of blocks) {
    if (type === "paragraph" || type === "heading") parseInline(text);
    for (const cell of [...(head ?? []), ...(rows ?? []).flat()]) parseInline(cell);
    for (const inner of [...(children ? [children] : []), ...(items ?? [])]) read(inner);
  }
};
/** Milliseconds of CPU, which a busy machine does not change. */
const once = (text) => {
  const start = process.cpuUsage();
  read(parseBlocks(text));
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000;
};
const best = (text) => Math.min(...Array.from({ length: 5 }, () => once(text)));
for (const [name, make] of Object.entries(HOSTILE)) {
  const [short, long] = [best(make(SHORT)), best(make(16 * SHORT))];
  assert.ok(
    long < 80 * Math.max(short, 0.5),
    `${name}: ${short.toFixed(2)} ms for ${SHORT}, ${long.toFixed(2)} ms for ${16 * SHORT}`,
  );
  count += 1;
}
console.log(`ok      Markdown: ${count} texts`);
