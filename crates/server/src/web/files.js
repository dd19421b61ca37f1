// Conversations as files: all or one as JSON, one as Markdown, one as a page that needs nothing else; and back from JSON.

import { Conversation, chain, newId, titleOf } from "./conversation.js";
import { render } from "./markdown.js";
import { settled } from "./math.js";

const FORMAT = "rocinante-conversations";
const MAX_MESSAGES = 100_000;

/** A wrong file; the message says what is wrong. */
export class ImportError extends Error {}

function save(text, name, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(conversation, ending) {
  const plain = conversation.title
    .normalize("NFKC")
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 60);
  return `${plain || "conversation"}.${ending}`;
}

export function saveJson(conversations, name = "rocinante-conversations.json") {
  const text = JSON.stringify({ format: FORMAT, version: 1, conversations: conversations.map((c) => c.toPlain()) }, null, 2);
  save(text, name, "application/json");
}

export function saveOneJson(conversation) {
  saveJson([conversation], fileName(conversation, "json"));
}

export function saveMarkdown(conversation) {
  save(toMarkdown(conversation), fileName(conversation, "md"), "text/markdown");
}

export async function savePage(conversation) {
  save(await toPage(conversation), fileName(conversation, "html"), "text/html");
}

function who(message) {
  return message.role === "user" ? "You" : message.model || "Model";
}

/** The branch on screen, with who said what. */
export function toMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.settings.system) parts.push(`> ${conversation.settings.system.replaceAll("\n", "\n> ")}`);
  for (const message of conversation.messages) {
    parts.push(`## ${who(message)}`);
    for (const file of message.files ?? []) parts.push(`*Attached: ${file.name}*`);
    if (message.content) parts.push(message.content);
  }
  return `${parts.join("\n\n")}\n`;
}

const PAGE_STYLE = `body{font:16px/1.55 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;color:#1d1c1a;background:#fff}
h1{font-size:1.4rem}article{margin:0 0 1.4rem}.who{font-size:.85rem;color:#5f5b55;margin:0 0 .2rem}
.user>.body{background:#f0eeeb;border-radius:12px;padding:.6rem .9rem;white-space:pre-wrap}
.code{border:1px solid #dcd8d2;border-radius:10px;margin:.7rem 0;background:#f7f6f4}.code-head{font-size:.8rem;color:#5f5b55;padding:.2rem .8rem;border-bottom:1px solid #dcd8d2}
pre{margin:0;padding:.7rem .8rem;overflow-x:auto}code{font-family:ui-monospace,monospace;font-size:.9em}
table{border-collapse:collapse}th,td{border:1px solid #dcd8d2;padding:.3rem .6rem}blockquote{border-left:3px solid #dcd8d2;margin:.6rem 0;padding-left:.9rem;color:#5f5b55}
.math.display{display:block;text-align:center;margin:.6rem 0;overflow-x:auto}.right{text-align:right}.center{text-align:center}
@media(prefers-color-scheme:dark){body{background:#1a1917;color:#eceae6}.user>.body,.code{background:#2a2826}.who,.code-head,blockquote{color:#a8a39b}a{color:#e06a50}}`;

/** A page without scripts that loads nothing; formulas are MathML. */
export async function toPage(conversation) {
  const page = document.implementation.createHTMLDocument(conversation.title);
  const add = (parent, name, text, attributes = {}) => {
    const made = page.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  };
  page.documentElement.lang = "en";
  add(page.head, "meta", "", { charset: "utf-8" });
  add(page.head, "meta", "", {
    "http-equiv": "Content-Security-Policy",
    content: "default-src 'none'; style-src 'unsafe-inline'",
  });
  add(page.head, "meta", "", { name: "viewport", content: "width=device-width, initial-scale=1" });
  add(page.head, "style", PAGE_STYLE);
  add(page.body, "h1", conversation.title);
  for (const message of conversation.messages) {
    const article = add(page.body, "article", "", { class: message.role });
    add(article, "p", who(message), { class: "who" });
    for (const file of message.files ?? []) add(article, "p", `Attached: ${file.name}`, { class: "who" });
    const body = add(article, "div", message.role === "user" ? message.content : "", { class: "body" });
    if (message.role === "user") continue;
    const rendered = document.createElement("div");
    rendered.append(render(message.content));
    await settled();
    for (const node of rendered.querySelectorAll("button, .katex-html")) node.remove();
    for (const node of rendered.querySelectorAll("[tabindex]")) node.removeAttribute("tabindex");
    body.append(...[...rendered.childNodes].map((node) => page.importNode(node, true)));
  }
  return `<!doctype html>\n${page.documentElement.outerHTML}\n`;
}

/** Conversations from the text of a file: our own exports, or a list of messages in OpenAI's shape. */
export function fromJson(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new ImportError("This file is not JSON.");
  }
  const all = Array.isArray(read) ? read : (read?.conversations ?? [read]);
  const list = isMessage(all[0]) ? [{ messages: all }] : all;
  if (!Array.isArray(list) || !list.length) throw new ImportError("This file holds no conversations.");
  return list.map(conversationOf);
}

function isMessage(value) {
  return typeof value?.role === "string" && typeof value.content === "string";
}

/** Takes over what we know, in the types we know; nothing else comes in. */
function conversationOf(plain) {
  const listed = Array.isArray(plain?.nodes) ? plain.nodes : plain?.messages;
  if (!Array.isArray(listed) || listed.length > MAX_MESSAGES || !listed.every(isMessage))
    throw new ImportError("This file holds no conversations that this page can read.");
  const system = listed.find((m) => m.role === "system")?.content;
  const spoken = listed.filter((m) => m.role === "user" || m.role === "assistant");
  const hasTree = spoken === listed || spoken.every((m) => typeof m.id === "string");
  const nodes = hasTree && plain.nodes ? spoken.map(nodeOf) : chain(spoken.map(nodeOf));
  const known = new Set();
  for (const node of nodes) {
    if (node.parent !== undefined && !known.has(node.parent))
      throw new ImportError("A message in this file has an unknown parent.");
    known.add(node.id);
  }
  const settings = {};
  for (const [name, value] of Object.entries(plain.settings ?? {})) {
    if (typeof value === "number" || (name === "system" && typeof value === "string")) settings[name] = value;
    if (name === "stop" && Array.isArray(value)) settings.stop = value.filter((stop) => typeof stop === "string");
  }
  if (system) settings.system = system;
  const text = (value) => (typeof value === "string" ? value : undefined);
  const updated = Number.isFinite(plain.updated) ? plain.updated : Date.now();
  return new Conversation({
    id: /^[0-9a-f]{16}$/.test(plain.id) ? plain.id : newId(),
    title: text(plain.title) ?? titleOf(nodes[0]?.content ?? ""),
    updated,
    model: text(plain.model),
    settings,
    nodes,
    leaf: text(plain.leaf),
  });
}

function nodeOf({ id, parent, time, role, content, reasoning, model, finish, files, speed, firstToken, usage }) {
  const node = { role, content };
  if (typeof id === "string") node.id = id;
  if (typeof parent === "string") node.parent = parent;
  for (const [name, value] of Object.entries({ reasoning, model, finish })) if (typeof value === "string") node[name] = value;
  for (const [name, value] of Object.entries({ time, speed, firstToken })) if (Number.isFinite(value)) node[name] = value;
  if (Number.isFinite(usage?.total_tokens))
    node.usage = { total_tokens: usage.total_tokens, completion_tokens: Number(usage.completion_tokens) || 0 };
  const isFile = (file) => typeof file?.name === "string" && typeof file.text === "string";
  if (Array.isArray(files)) node.files = files.filter(isFile).map(({ name, text }) => ({ name, text }));
  return node;
}
