// Markdown to DOM nodes. What a model writes is never parsed as HTML: text becomes text nodes, so an answer cannot
// run a script, and a half-written answer always renders. The grammar is in `blocks.js` and `inline.js`.

import { parseBlocks } from "./blocks.js";
import { copyButton, element } from "./dom.js";
import { highlight } from "./highlight.js";
import { parseInline } from "./inline.js";
import { formula } from "./math.js";

/** Renders `source` into a fragment. */
export function render(source) {
  const out = document.createDocumentFragment();
  out.append(...parseBlocks(source).map(block));
  return out;
}

/** An element whose text grows: blocks that did not change stay as they are, with what a reader selected in them. */
export class Growing {
  #target;
  #sources = [];

  constructor(target) {
    this.#target = target;
  }

  set(source) {
    const blocks = parseBlocks(source);
    let same = 0;
    while (same < blocks.length && this.#sources[same] === blocks[same].source) same += 1;
    while (this.#target.childNodes.length > same) this.#target.lastChild.remove();
    this.#target.append(...blocks.slice(same).map(block));
    this.#sources = blocks.map((b) => b.source);
  }
}

function block(node) {
  switch (node.type) {
    case "heading":
      return inlineInto(element(`h${Math.min(node.level + 1, 6)}`), node.text);
    case "rule":
      return element("hr");
    case "code":
      return codeBlock(node.text, node.language);
    case "math":
      return formula(node.text, true);
    case "quote":
      return element("blockquote", "", ...node.children.map(block));
    case "list":
      return list(node);
    case "table":
      return table(node);
    default:
      return inlineInto(element("p"), node.text);
  }
}

function list(node) {
  const made = element(node.isOrdered ? "ol" : "ul", "", ...node.items.map(item));
  if (node.isOrdered && node.start !== 1) made.start = node.start;
  return made;
}

function item(children) {
  const made = element("li");
  const [first, ...rest] = children;
  // A tight item holds its text directly.
  if (first?.type === "paragraph") {
    inlineInto(made, first.text);
    made.append(...rest.map(block));
  } else made.append(...children.map(block));
  return made;
}

function table(node) {
  const row = (cells, kind) =>
    element(
      "tr",
      "",
      ...cells.map((text, column) => inlineInto(element(kind, node.align[column] === "left" ? "" : node.align[column]), text)),
    );
  const head = element("thead", "", row(node.head, "th"));
  const body = element("tbody", "", ...node.rows.map((cells) => row(cells, "td")));
  const scroller = element("div", "table", element("table", "", head, body));
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "group");
  scroller.setAttribute("aria-label", "Table");
  return scroller;
}

function codeBlock(text, language) {
  const code = element("code");
  highlight(code, text, language);
  const copy = copyButton(() => text);
  copy.className = "copy";
  const pre = element("pre", "", code);
  pre.tabIndex = 0;
  return element("div", "code", element("div", "code-head", element("span", "", language || "text"), copy), pre);
}

function inlineInto(parent, source) {
  parent.append(...parseInline(source).map(inline));
  return parent;
}

function inline(node) {
  if (typeof node === "string") return node;
  switch (node.type) {
    case "break":
      return element("br");
    case "code":
      return element("code", "", node.text);
    case "math":
      return formula(node.text, node.isDisplay);
    case "link":
      return anchor(node.address, node.children.map(inline));
    default:
      return element(node.type, "", ...node.children.map(inline));
  }
}

function anchor(address, children) {
  const made = element("a", "", ...children);
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}
