// One conversation: a tree of messages, of which one branch is on screen, and settings. An answer that is made again
// and a message that is edited stand beside the old ones, so nothing that was written is lost. Plain data in the store.

import { recall, remember } from "./dom.js";

export const SETTINGS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
  "max_tokens",
  "seed",
];
/** Tokens of an answer where the settings say nothing. One that is cut can be continued. */
export const MAX_ANSWER = 4096;
const DEFAULTS = "roci.defaults";

/** Settings for new conversations, as the user chose them last. */
export function defaults() {
  return recall(DEFAULTS) ?? {};
}

export function setDefaults(settings) {
  remember(DEFAULTS, settings);
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  #byId = new Map();

  /** `messages`: the form of versions before 0.2, which had one branch. */
  constructor({ id, title, updated, model, settings, nodes, leaf, messages } = {}) {
    this.id = id ?? newId();
    this.title = title ?? "New chat";
    this.updated = updated ?? Date.now();
    this.model = model;
    this.settings = settings ?? {};
    this.nodes = nodes ?? chain(messages ?? []);
    for (const node of this.nodes) {
      this.#byId.set(node.id, node);
      // A page that was closed in the middle of an answer comes back with what it had.
      if (node.isRunning) {
        node.isRunning = false;
        node.finish = "stopped";
      }
    }
    this.leaf = this.#byId.has(leaf) ? leaf : this.nodes.at(-1)?.id;
  }

  /** From the store, without what another tab is still writing. */
  static settled(plain) {
    const running = (plain.nodes ?? []).find((node) => node.isRunning && !node.content);
    if (!running) return new Conversation(plain);
    const nodes = plain.nodes.filter((node) => node !== running);
    return new Conversation({ ...plain, nodes, leaf: plain.leaf === running.id ? running.parent : plain.leaf });
  }

  toPlain() {
    const { id, title, updated, model, settings, nodes, leaf } = this;
    return { id, title, updated, model, settings, nodes, leaf };
  }

  node(id) {
    return this.#byId.get(id);
  }

  /** The branch on screen. */
  get messages() {
    const path = [];
    for (let node = this.#byId.get(this.leaf); node; node = this.#byId.get(node.parent)) path.push(node);
    return path.reverse();
  }

  #add(node) {
    const made = { id: newId(), time: Date.now(), ...node };
    this.nodes.push(made);
    this.#byId.set(made.id, made);
    this.leaf = made.id;
    this.updated = Date.now();
    return made;
  }

  addUser(text, files) {
    if (!this.nodes.length) this.title = titleOf(text || files[0].name);
    return this.#add({ parent: this.leaf, role: "user", content: text, files });
  }

  /** Another version of a user message, with no answer yet. */
  editUser(old, text) {
    if (old.parent === undefined && this.title === titleOf(old.content)) this.title = titleOf(text);
    return this.#add({ parent: old.parent, role: "user", content: text, files: old.files });
  }

  /** An answer to the last message, or another version of `old`. */
  addAnswer(old) {
    return this.#add({ parent: old ? old.parent : this.leaf, role: "assistant", content: "", reasoning: "", isRunning: true });
  }

  /** A message and those that stand in its place. */
  versions(message) {
    return this.nodes.filter((node) => node.parent === message.parent && node.role === message.role);
  }

  /** Shows the branch through a message: as far as it goes, by the newest at each turn. */
  choose(message) {
    let last = message;
    for (let next = last; next; next = this.nodes.findLast((node) => node.parent === last.id)) last = next;
    this.leaf = last.id;
  }

  /** How many messages go with this one. */
  countBelow(message) {
    return this.#below(message).size;
  }

  #below(message) {
    const gone = new Set([message.id]);
    // Children stand behind their parents.
    for (const node of this.nodes) if (gone.has(node.parent)) gone.add(node.id);
    return gone;
  }

  /** Takes a message out, with what followed it. Another version takes its place. */
  remove(message) {
    const gone = this.#below(message);
    const others = this.versions(message).filter((node) => node !== message);
    this.nodes = this.nodes.filter((node) => !gone.has(node.id));
    for (const id of gone) this.#byId.delete(id);
    if (!this.#byId.has(this.leaf)) {
      if (others.length) this.choose(others.at(-1));
      else this.leaf = message.parent;
    }
    this.updated = Date.now();
  }

  /** The request for `answer`: everything above it, and what it has so far where it is continued. */
  toRequest(answer, isContinued) {
    const { system, stop, ...numbers } = this.settings;
    const messages = [];
    if (system) messages.push({ role: "system", content: system });
    for (const message of this.messages) {
      if (message === answer && !isContinued) continue;
      if (message.role === "user") messages.push({ role: "user", content: withFiles(message) });
      else if (message.content) messages.push({ role: "assistant", content: message.content });
    }
    const request = { model: this.model, messages, max_tokens: MAX_ANSWER };
    for (const name of SETTINGS) if (numbers[name] !== undefined) request[name] = numbers[name];
    if (stop?.length) request.stop = stop;
    if (isContinued) request.continue_final_message = true;
    return request;
  }
}

/** Messages one after the other, as a tree of one branch. */
export function chain(messages) {
  let parent;
  return messages.map((message) => {
    const node = { ...message, id: newId(), parent };
    parent = node.id;
    return node;
  });
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 57)}...` : line || "New chat";
}

/** Attached files come before the question, each fenced and named. */
function withFiles(message) {
  const parts = (message.files ?? []).map((file) => {
    const longest = [...file.text.matchAll(/`+/g)].reduce((most, run) => Math.max(most, run[0].length), 2);
    const fence = "`".repeat(longest + 1);
    return `File ${file.name}:\n${fence}\n${file.text}\n${fence}`;
  });
  return [...parts, message.content].filter(Boolean).join("\n\n");
}
