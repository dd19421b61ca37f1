// One conversation: its messages and settings, and how they become a request. Plain data in the store.

export const SETTINGS = [
  "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "seed",
];
const DEFAULTS = "roci.defaults";

/** Settings for new conversations, as the user chose them last. */
export function defaults() {
  try {
    return JSON.parse(localStorage.getItem(DEFAULTS)) ?? {};
  } catch {
    return {};
  }
}

export function setDefaults(settings) {
  try {
    localStorage.setItem(DEFAULTS, JSON.stringify(settings));
  } catch {
    // No storage: they last as long as the page.
  }
}

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  constructor({ id, title, updated, model, settings, messages } = {}) {
    this.id = id ?? newId();
    this.title = title ?? "New chat";
    this.updated = updated ?? Date.now();
    this.model = model;
    this.settings = settings ?? {};
    this.messages = messages ?? [];
    // A page that was closed in the middle of an answer comes back with what it had.
    for (const message of this.messages) {
      if (message.isRunning) {
        message.isRunning = false;
        message.finish = "stopped";
      }
    }
  }

  toPlain() {
    const { id, title, updated, model, settings, messages } = this;
    return { id, title, updated, model, settings, messages };
  }

  addUser(text, files) {
    if (!this.messages.length) this.title = titleOf(text || files[0].name);
    this.messages.push({ role: "user", content: text, files });
    this.updated = Date.now();
  }

  /** Replaces a user message; what followed it is dropped. */
  editUser(index, text) {
    const message = this.messages[index];
    message.content = text;
    this.messages.length = index + 1;
    if (index === 0) this.title = titleOf(text);
    this.updated = Date.now();
  }

  addAnswer() {
    const message = { role: "assistant", content: "", reasoning: "", isRunning: true };
    this.messages.push(message);
    return message;
  }

  /** Drops the last answer so that it can be made again; false where there is none. */
  dropAnswer() {
    if (this.messages.at(-1)?.role !== "assistant") return false;
    this.messages.pop();
    return true;
  }

  toRequest() {
    const { system, stop, ...numbers } = this.settings;
    const messages = [];
    if (system) messages.push({ role: "system", content: system });
    for (const message of this.messages) {
      if (message.isRunning) continue;
      if (message.role === "user") messages.push({ role: "user", content: withFiles(message) });
      else if (message.content) messages.push({ role: "assistant", content: message.content });
    }
    const request = { model: this.model, messages };
    for (const name of SETTINGS) if (numbers[name] !== undefined) request[name] = numbers[name];
    if (stop?.length) request.stop = stop;
    return request;
  }
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 57)}...` : line || "New chat";
}

/** Attached files come before the question, each fenced and named. */
function withFiles(message) {
  const parts = (message.files ?? []).map((file) => {
    const longest = Math.max(2, ...[...file.text.matchAll(/`+/g)].map((m) => m[0].length));
    const fence = "`".repeat(longest + 1);
    return `File ${file.name}:\n${fence}\n${file.text}\n${fence}`;
  });
  return [...parts, message.content].filter(Boolean).join("\n\n");
}
