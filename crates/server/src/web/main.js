// The chat page: wires the parts. State lives in `conversation.js`, drawing in `view.js`; this file listens.

import * as api from "./api.js";
import * as store from "./store.js";
import { Conversation, defaults } from "./conversation.js";
import { View } from "./view.js";
import { Sidebar } from "./sidebar.js";
import { Settings } from "./settings.js";
import { Attachments } from "./attachments.js";

const $ = (id) => document.getElementById(id);
const view = new View($("log"), {
  onEdit: (index, text) => edit(index, text),
  onRegenerate: () => regenerate(),
  onStarter: (text) => send(text),
});
const files = new Attachments($("files"), $("attach"), $("attach-input"), $("composer"), banner);
const settings = new Settings($("settings"));
const sidebar = new Sidebar($("sidebar"), {
  onOpen: (id) => open(id),
  onNew: () => newChat(),
  onRemove: (id) => remove(id),
  onRename: (id, title) => rename(id, title),
  onClear: () => clear(),
  onExport: () => exportAll(),
});

let conversations = [];
let now; // the conversation on screen
let running; // { controller, conversation } while an answer streams
let contexts = new Map();
let retry; // the next look at a server that did not answer
const SAVE_EVERY_MS = 1000; // while an answer grows
const RETRY_EVERY_MS = 5000;

// ---------------------------------------------------------------- server

function banner(text, action) {
  const box = $("banner");
  box.replaceChildren(...(text ? [document.createTextNode(text)] : []));
  if (action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = action.label;
    button.addEventListener("click", action.run);
    box.append(button);
  }
  box.hidden = !text;
}

async function loadModels() {
  const select = $("model");
  clearTimeout(retry);
  try {
    const found = await api.models();
    contexts = new Map(found.map((m) => [m.id, m.context]));
    select.replaceChildren(...found.map((m) => new Option(m.id, m.id)));
    const wanted = now?.model ?? localStorage.getItem("roci.model");
    if (wanted && contexts.has(wanted)) select.value = wanted;
    banner("");
    if (!found.length) banner("The server has no model.");
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      banner("This server asks for an API key.", { label: "Enter the key", run: () => openSettings("api-key") });
    } else {
      banner(error.message, { label: "Try again", run: loadModels });
      if (!error.status) retry = setTimeout(loadModels, RETRY_EVERY_MS);
    }
  }
  drawContext();
}

// ---------------------------------------------------------------- conversations

async function save(conversation, isPart) {
  try {
    await store.put(conversation.toPlain(), isPart);
  } catch {
    banner("This browser could not store the conversation; it will be lost on reload.");
  }
}

/** Another tab changed something: it is shown here, too, but never over an answer that is being made here. */
async function takeUp() {
  const kept = (await store.all()).map((plain) => {
    if (running?.conversation.id === plain.id) return running.conversation;
    if (plain.id === now.id && plain.updated === now.updated) return now;
    // What is being written there is shown when it is whole.
    return new Conversation({ ...plain, messages: plain.messages.filter((m) => !m.isRunning) });
  });
  conversations = kept;
  const again = kept.find((c) => c.id === now.id);
  if (again && again !== now) show(again);
  else if (!again && now.messages.length && running?.conversation !== now) newChat();
  else drawSidebar();
}

function drawSidebar() {
  conversations.sort((a, b) => b.updated - a.updated);
  sidebar.draw(conversations, now?.id);
}

function show(conversation) {
  now = conversation;
  if (conversation.model && contexts.has(conversation.model)) $("model").value = conversation.model;
  location.hash = conversation.messages.length ? conversation.id : "";
  document.title = conversation.messages.length ? `${conversation.title} · Rocinante` : "Rocinante";
  view.show(conversation, running?.conversation === conversation);
  drawContext();
  drawButtons();
  drawSidebar();
}

function newChat() {
  show(new Conversation({ settings: defaults() }));
  sidebar.close();
  $("composer-text").focus();
}

function open(id) {
  const found = conversations.find((c) => c.id === id);
  if (!found) return;
  show(found);
  sidebar.close();
  $("composer-text").focus();
}

async function remove(id) {
  const found = conversations.find((c) => c.id === id);
  if (!found || !(await confirm(`Delete “${found.title}”?`, "Delete"))) return;
  if (running?.conversation === found) running.controller.abort();
  conversations = conversations.filter((c) => c !== found);
  await store.remove(id);
  if (now === found) newChat();
  else drawSidebar();
}

async function rename(id, title) {
  const found = conversations.find((c) => c.id === id);
  if (!found || !title.trim()) return;
  found.title = title.trim();
  await save(found);
  drawSidebar();
}

async function clear() {
  if (!conversations.length || !(await confirm(`Delete all ${conversations.length} conversations?`, "Delete all"))) return;
  running?.controller.abort();
  conversations = [];
  await store.clear();
  newChat();
}

function exportAll() {
  const text = JSON.stringify(conversations.map((c) => c.toPlain()), null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "rocinante-conversations.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

function confirm(text, yes) {
  const dialog = $("confirm");
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }),
  );
}

// ---------------------------------------------------------------- answers

async function send(text) {
  if (running) return;
  const attached = files.take();
  if (!text.trim() && !attached.length) return;
  now.addUser(text.trim(), attached);
  await answer();
}

async function edit(index, text) {
  if (running || !text.trim()) return;
  now.editUser(index, text.trim());
  await answer();
}

async function regenerate() {
  if (running || !now.dropAnswer()) return;
  await answer();
}

async function answer() {
  const conversation = now;
  if (!conversations.includes(conversation)) conversations.push(conversation);
  conversation.model = $("model").value;
  const controller = new AbortController();
  running = { controller, conversation };
  const message = conversation.addAnswer();
  show(conversation);
  view.scrollToEnd();
  keepFocus();
  await save(conversation);

  const started = performance.now();
  let first;
  let pieces = 0;
  let saved = started;
  try {
    const result = await api.streamChat(conversation.toRequest(), controller.signal, (delta) => {
      first ??= performance.now();
      pieces += 1;
      message.content += delta.text;
      message.reasoning += delta.reasoning;
      if (performance.now() - saved > SAVE_EVERY_MS) {
        saved = performance.now();
        save(conversation, true);
      }
      if (now === conversation) {
        view.update(message);
        drawSpeed({ tokens: pieces, seconds: (performance.now() - first) / 1000 });
      }
    });
    message.finish = result.finish;
    message.usage = result.usage;
    const tokens = result.usage?.completion_tokens ?? pieces;
    message.speed = tokens > 1 && first ? (tokens - 1) / ((performance.now() - first) / 1000) : undefined;
    message.firstToken = first ? (first - started) / 1000 : undefined;
  } catch (error) {
    if (error.name === "AbortError") message.finish = "stopped";
    else {
      message.error = describe(error);
      if (error.status === 401) banner(error.message, { label: "Enter the key", run: () => openSettings("api-key") });
    }
  }
  message.isRunning = false;
  running = undefined;
  conversation.updated = Date.now();
  await save(conversation);
  if (now === conversation) {
    view.finish(message);
    drawSpeed();
    drawContext();
    announce(message);
    keepFocus();
  }
  drawButtons();
  drawSidebar();
  // A model that was loaded for this answer tells its context only now.
  if (!message.error && !contexts.get(conversation.model)) await loadModels();
}

/** A button that was pressed may be gone: whoever has a keyboard goes on in the message box. */
function keepFocus() {
  if (document.activeElement === document.body && matchMedia("(pointer: fine)").matches) $("composer-text").focus();
}

function describe(error) {
  if (error.status === 429) {
    const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : " Try again in a moment.";
    return `The server is busy.${wait}`;
  }
  const text = error.message || String(error);
  return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

function announce(message) {
  const said = message.error ? `Error: ${message.error}` : message.finish === "stopped" ? "Stopped." : message.content;
  $("announce").textContent = said;
}

// ---------------------------------------------------------------- small things on screen

function drawButtons() {
  const isRunning = Boolean(running);
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
  $("log").setAttribute("aria-busy", String(isRunning));
}

function drawSpeed(live) {
  const last = now.messages.at(-1);
  let text = "";
  if (live) {
    const rate = live.seconds > 0.2 ? ` · ${((live.tokens - 1) / live.seconds).toFixed(1)} tokens/s` : "";
    text = `${live.tokens} tokens${rate}`;
  } else if (last?.speed) {
    text = `${last.usage?.completion_tokens ?? ""} tokens · ${last.speed.toFixed(1)} tokens/s`;
  }
  $("speed").textContent = text;
  if (!live && last?.speed) $("speed").append(roomy(` · first after ${last.firstToken.toFixed(2)} s`));
}

/** Text that is left out where there is little room. */
function roomy(text) {
  const made = document.createElement("span");
  made.className = "roomy";
  made.textContent = text;
  return made;
}

function drawContext() {
  const used = now?.messages.findLast((m) => m.usage)?.usage?.total_tokens;
  const size = contexts.get($("model").value);
  $("context").hidden = !used;
  if (!used) return;
  $("context-text").textContent = size ? `${used} of ${size}` : String(used);
  $("context-text").append(roomy(" context tokens"));
  $("context-meter").hidden = !size;
  if (size) $("context-meter").value = Math.min(1, used / size);
}

function fit() {
  const box = $("composer-text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

async function openSettings(field) {
  const saved = await settings.edit(now, field);
  if (!saved) return;
  if (conversations.includes(now)) await save(now);
  await loadModels();
}

// ---------------------------------------------------------------- listening

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const box = $("composer-text");
  if (running) return;
  const text = box.value;
  box.value = "";
  fit();
  send(text);
});
$("composer-text").addEventListener("input", fit);
$("composer-text").addEventListener("keydown", (event) => {
  // While a word is being composed (Japanese, Chinese ...), Enter belongs to the input method.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && !event.target.value && !running) {
    event.preventDefault();
    view.editLast();
  }
});
$("stop").addEventListener("click", () => running?.controller.abort());
$("menu").addEventListener("click", () => sidebar.toggle());
$("settings-open").addEventListener("click", () => openSettings());
$("help-open").addEventListener("click", () => $("help").showModal());
$("to-end").addEventListener("click", () => view.scrollToEnd());
$("model").addEventListener("change", () => {
  now.model = $("model").value;
  try {
    localStorage.setItem("roci.model", now.model);
  } catch {
    // No storage: the choice lasts as long as the page.
  }
  drawContext();
});
view.onScroll((isAtEnd) => ($("to-end").hidden = isAtEnd));
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && running) running.controller.abort();
  else if (event.altKey && event.code === "KeyN") newChat();
  else if (event.altKey && event.code === "KeyR") regenerate();
  else if (event.ctrlKey && event.key === ",") openSettings();
  else if (event.ctrlKey && event.key === "/") $("help").showModal();
  else return;
  event.preventDefault();
});
// A page that goes away has no time for the database: what it has of an answer waits for its reload elsewhere.
addEventListener("pagehide", () => running && store.keepPart(running.conversation.toPlain()));
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (id && id !== now?.id) open(id);
});

await store.start();
try {
  conversations = (await store.all()).map((plain) => new Conversation(plain));
} catch {
  conversations = [];
}
store.onChange(takeUp);
if (!store.isKept) banner("This browser keeps nothing for this page: conversations are lost on reload.");
const wanted = conversations.find((c) => c.id === location.hash.slice(1));
show(wanted ?? new Conversation({ settings: defaults() }));
await loadModels();
