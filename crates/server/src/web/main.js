// The chat page: wires the parts. State lives in `conversation.js`, an answer being made in `chat.js`, drawing in
// `view.js`; this file listens.

import * as store from "./store.js";
import { Attachments } from "./attachments.js";
import { Chat } from "./chat.js";
import { Conversation, defaults } from "./conversation.js";
import { $, size } from "./dom.js";
import { Download } from "./download.js";
import * as files from "./files.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { View } from "./view.js";

let conversations = [];
let now; // the conversation on screen

const chat = new Chat({ onPhase: drawPhase, onGrow, onSave: (conversation) => save(conversation, true), onEnd });
const view = new View($("log"), {
  onEdit: edit,
  onRegenerate: regenerate,
  onContinue: goOn,
  onRemove: removeMessage,
  onChoose: choose,
  onStarter: (text) => send(text),
});
const attached = new Attachments(banner, takeIn);
const settings = new Settings($("settings"));
const models = new Models($("model"), { onChange: drawModel, onState: drawServer });
const download = new Download((name) => models.load(name));
const sidebar = new Sidebar({
  onOpen: open,
  onNew: newChat,
  onRemove: remove,
  onRename: rename,
  onClear: clear,
  onExport: () => files.saveJson(conversations),
  onSaveMarkdown: files.saveMarkdown,
  onSaveJson: files.saveOneJson,
  onSavePage: files.savePage,
});

// ---------------------------------------------------------------- what the user is told

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

function drawServer({ text, isKeyWanted, isAway, isBack }) {
  if (isKeyWanted) banner("This server asks for an API key.", { label: "Enter the key", run: () => openSettings("api-key") });
  else if (isAway) banner(`${text} Trying again every few seconds.`, { label: "Try now", run: () => models.load(now?.model) });
  else banner(text, text ? { label: "Try again", run: () => models.load(now?.model) } : undefined);
  if (isBack) $("announce").textContent = "The server is back.";
}

function confirm(text, yes) {
  const dialog = $("confirm");
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
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
    if (chat.conversation?.id === plain.id) return chat.conversation;
    if (plain.id === now.id && plain.updated === now.updated) return now;
    return Conversation.settled(plain);
  });
  conversations = kept;
  const again = kept.find((c) => c.id === now.id);
  if (again && again !== now) show(again);
  else if (!again && now.nodes.length && !chat.isRunningIn(now)) newChat();
  else drawSidebar();
}

function drawSidebar() {
  conversations.sort((a, b) => b.updated - a.updated);
  sidebar.draw(conversations, now?.id);
}

function show(conversation) {
  now = conversation;
  models.choose(conversation.model);
  const hash = conversation.nodes.length ? `#${conversation.id}` : "";
  if (location.hash !== hash) history.replaceState(undefined, "", hash || location.pathname + location.search);
  document.title = conversation.nodes.length ? `${conversation.title} · Rocinante` : "Rocinante";
  drawButtons();
  view.show(conversation, chat.isRunningIn(conversation));
  drawSpeed();
  drawContext();
  drawSidebar();
}

function newChat() {
  show(new Conversation({ settings: defaults() }));
  sidebar.close();
  $("composer-text").focus();
}

/** `message`: the id of one to bring into sight. */
function open(id, message) {
  const found = conversations.find((c) => c.id === id);
  if (!found) return;
  const wanted = found.node(message);
  if (wanted && !found.messages.includes(wanted) && !chat.isRunningIn(found)) found.choose(wanted);
  show(found);
  sidebar.close();
  if (wanted) view.reveal(wanted);
  else $("composer-text").focus();
}

async function remove(conversation) {
  if (!(await confirm(`Delete “${conversation.title}”?`, "Delete"))) return;
  if (chat.isRunningIn(conversation)) chat.stop();
  conversations = conversations.filter((c) => c !== conversation);
  await store.remove(conversation.id);
  if (now === conversation) newChat();
  else drawSidebar();
}

async function rename(conversation, title) {
  conversation.title = title;
  if (conversation === now) show(now);
  else drawSidebar();
  await save(conversation);
}

async function clear() {
  if (!conversations.length || !(await confirm(`Delete all ${conversations.length} conversations?`, "Delete all"))) return;
  chat.stop();
  conversations = [];
  await store.clear();
  newChat();
}

/** Takes in a file of conversations; false where it was none. */
async function takeIn(text) {
  let found;
  try {
    found = files.fromJson(text);
  } catch (error) {
    if (!(error instanceof files.ImportError)) throw error;
    banner(error.message);
    return false;
  }
  for (const one of found) {
    // What is here already is not overwritten: the other one stands beside it.
    const twin = conversations.find((c) => c.id === one.id);
    if (twin?.updated === one.updated) continue;
    const taken = twin ? new Conversation({ ...one.toPlain(), id: undefined }) : one;
    conversations.push(taken);
    await save(taken);
  }
  drawSidebar();
  $("announce").textContent = `${found.length} conversations were imported.`;
  if (found.length === 1) open(found[0].id);
  return true;
}

// ---------------------------------------------------------------- answers

async function send(text) {
  if (chat.isRunning || attached.isReading) return;
  const along = attached.take();
  if (!text.trim() && !along.length) return;
  now.addUser(text.trim(), along);
  await answer(now.addAnswer());
}

async function edit(message, text) {
  if (chat.isRunning || !text.trim()) return;
  now.editUser(message, text.trim());
  await answer(now.addAnswer());
}

async function regenerate(message = now.messages.at(-1)) {
  if (chat.isRunning || message?.role !== "assistant") return;
  const made = now.addAnswer(message);
  // An answer that failed before it began is not worth keeping.
  if (message.error && !message.content) now.remove(message);
  await answer(made);
}

async function goOn(message) {
  if (chat.isRunning || message !== now.messages.at(-1)) return;
  await answer(message, true);
}

async function removeMessage(message) {
  if (chat.isRunning) return;
  const count = now.countBelow(message);
  if (!(await confirm(count > 1 ? `Delete this message and the ${count - 1} after it?` : "Delete this message?", "Delete")))
    return;
  now.remove(message);
  if (now.nodes.length) await save(now);
  else {
    conversations = conversations.filter((c) => c !== now);
    await store.remove(now.id);
  }
  show(now);
}

async function choose(message) {
  if (chat.isRunning) return;
  now.choose(message);
  show(now);
  await save(now);
}

async function answer(message, isContinued) {
  const conversation = now;
  if (!conversations.includes(conversation)) conversations.push(conversation);
  conversation.model = models.chosen;
  message.model = conversation.model;
  const whole = chat.run(conversation, message, isContinued);
  show(conversation);
  view.scrollToEnd();
  keepFocus();
  await save(conversation);
  await whole;
}

function drawPhase(message, phase) {
  if (now !== chat.conversation) return;
  const bytes = phase.text.startsWith("Loading") && models.bytes(message.model);
  view.setPhase(message, { ...phase, text: bytes ? `${phase.text} (${size(bytes)})` : phase.text });
}

function onGrow(message, live) {
  if (now !== chat.conversation) return;
  view.update(message);
  drawSpeed({ tokens: live.tokens, seconds: (performance.now() - live.first) / 1000 });
}

async function onEnd(conversation, message, error) {
  await save(conversation);
  drawButtons();
  if (now === conversation) {
    view.finish();
    drawSpeed();
    drawContext();
    $("announce").textContent = message.error
      ? `Error: ${message.error}`
      : message.finish === "stopped"
        ? "Stopped."
        : message.content;
    keepFocus();
  }
  drawSidebar();
  // A model that was loaded for this answer tells its context only now; a server that is away is watched.
  if (error?.status === 0 || error?.status === 401 || (!error && !models.context(conversation.model)))
    await models.load(conversation.model);
}

/** A button that was pressed may be gone: the keyboard focus moves to the message box. */
function keepFocus() {
  if (document.activeElement === document.body && matchMedia("(pointer: fine)").matches) $("composer-text").focus();
}

// ---------------------------------------------------------------- small things on screen

function drawButtons() {
  $("send").hidden = chat.isRunning;
  $("stop").hidden = !chat.isRunning;
  $("log").setAttribute("aria-busy", String(chat.isRunning));
}

/** Figures of the answer on screen, never of one before it. */
function drawSpeed(live) {
  const last = now.messages.at(-1);
  let text = "";
  if (live) {
    const rate = live.seconds > 0.2 ? ` · ${((live.tokens - 1) / live.seconds).toFixed(1)} tokens/s` : "";
    text = `${live.tokens} tokens${rate}`;
  } else if (last?.speed && !last.isRunning) {
    text = `${last.usage?.completion_tokens ?? ""} tokens · ${last.speed.toFixed(1)} tokens/s`;
  }
  $("speed").textContent = text;
  if (!live && text && last.firstToken) $("speed").append(roomy(` · first after ${last.firstToken.toFixed(2)} s`));
}

/** Text that is left out where there is little room. */
function roomy(text) {
  const made = document.createElement("span");
  made.className = "roomy";
  made.textContent = text;
  return made;
}

/** `chosen`: by the user, for this conversation. */
function drawModel(chosen) {
  if (chosen) now.model = chosen;
  drawContext();
}

function drawContext() {
  const used = now && !chat.isRunningIn(now) ? now.messages.findLast((m) => m.usage)?.usage?.total_tokens : undefined;
  const most = models.context();
  $("context").hidden = !used;
  if (!used) return;
  $("context-text").textContent = most ? `${used} of ${most}` : String(used);
  $("context-text").append(roomy(" context tokens"));
  $("context-meter").hidden = !most;
  if (most) $("context-meter").value = Math.min(1, used / most);
}

function fit() {
  const box = $("composer-text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

async function openSettings(field) {
  if (!(await settings.edit(now, models.sampling(), field))) return;
  if (conversations.includes(now)) await save(now);
  await models.load(models.chosen || now.model);
}

// ---------------------------------------------------------------- listening

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const box = $("composer-text");
  if (chat.isRunning || attached.isReading) return;
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
  } else if (event.key === "ArrowUp" && !event.target.value && !chat.isRunning) {
    event.preventDefault();
    view.editLast();
  }
});
$("stop").addEventListener("click", () => chat.stop());
$("settings-open").addEventListener("click", () => openSettings());
$("help-open").addEventListener("click", () => $("help").showModal());
$("download-open").addEventListener("click", () => download.open());
$("import").addEventListener("click", () => $("import-input").click());
$("import-input").addEventListener("change", async (event) => {
  for (const file of [...event.target.files]) await takeIn(await file.text());
  event.target.value = "";
});
$("to-end").addEventListener("click", () => view.scrollToEnd());
view.onScroll((isAtEnd) => ($("to-end").hidden = isAtEnd));

const SHORTCUTS = [
  [(e) => e.key === "Escape" && chat.isRunning, () => chat.stop()],
  [(e) => e.altKey && e.code === "KeyN", newChat],
  [(e) => e.altKey && e.code === "KeyR", () => regenerate()],
  [(e) => e.altKey && e.code === "KeyS", () => sidebar.toggle()],
  [(e) => e.ctrlKey && e.key === "k", () => sidebar.find()],
  [(e) => e.ctrlKey && e.key === ",", () => openSettings()],
  [(e) => e.ctrlKey && e.key === "/", () => $("help").showModal()],
  [(e) => e.key === "?" && !e.target.matches("input, textarea, select"), () => $("help").showModal()],
];
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const [, act] = SHORTCUTS.find(([matches]) => matches(event)) ?? [];
  if (!act) return;
  event.preventDefault();
  act();
});
// A page that goes away has no time for the database: what it has of an answer waits for its reload elsewhere.
addEventListener("pagehide", () => chat.isRunning && store.keepPart(chat.conversation.toPlain()));
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
if (!store.isKept) banner("This browser does not store data for this page: conversations are lost on reload.");
const wanted = conversations.find((c) => c.id === location.hash.slice(1));
show(wanted ?? new Conversation({ settings: defaults() }));
await models.load(now.model);
