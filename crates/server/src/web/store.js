// Conversations, kept in this browser (IndexedDB). Where the browser has no storage for us, they live in memory and
// `isKept` is false, so that the page can say so.

const NAME = "rocinante";
const STORE = "conversations";
const PART = "roci.part";
const memory = new Map();
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(NAME) : undefined;
let database;
export let isKept = true;

function open() {
  return new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
    asked.onblocked = () => reject(new Error("blocked"));
  });
}

export async function start() {
  try {
    database = await open();
  } catch {
    isKept = false;
    return;
  }
  try {
    await takePart();
  } catch {
    // What was saved last stays.
  }
}

function run(mode, action) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(STORE, mode);
    const asked = action(transaction.objectStore(STORE));
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Keeps a conversation at once, over a reload of this tab. */
export function keepPart(conversation) {
  try {
    sessionStorage.setItem(PART, JSON.stringify(conversation));
  } catch {
    // No storage, or too little: what was saved last stays.
  }
}

/** Takes up what `keepPart` kept. */
async function takePart() {
  const kept = sessionStorage.getItem(PART);
  if (!kept) return;
  sessionStorage.removeItem(PART);
  await run("readwrite", (s) => s.put(JSON.parse(kept)));
}

/** All conversations, newest first. */
export async function all() {
  const found = database ? await run("readonly", (s) => s.getAll()) : [...memory.values()];
  return found.sort((a, b) => b.updated - a.updated);
}

/** `isPart`: an answer is still growing, and other tabs need not look. */
export async function put(conversation, isPart = false) {
  const copy = structuredClone(conversation);
  if (database) await run("readwrite", (s) => s.put(copy));
  else memory.set(copy.id, copy);
  if (!isPart) tell();
}

/** `action` is called when another tab of this page has changed something. */
export function onChange(action) {
  if (channel) channel.onmessage = action;
}

function tell() {
  if (database) channel?.postMessage("changed");
}

export async function remove(id) {
  if (database) await run("readwrite", (s) => s.delete(id));
  else memory.delete(id);
  tell();
}

export async function clear() {
  if (database) await run("readwrite", (s) => s.clear());
  else memory.clear();
  tell();
}
