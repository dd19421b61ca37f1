// Conversations, kept in this browser (IndexedDB). Where the browser has no storage for us, they live in memory and
// `isKept` is false, so that the page can say so.

const NAME = "rocinante";
const STORE = "conversations";
const memory = new Map();
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

/** All conversations, newest first. */
export async function all() {
  const found = database ? await run("readonly", (s) => s.getAll()) : [...memory.values()];
  return found.sort((a, b) => b.updated - a.updated);
}

export async function put(conversation) {
  const copy = structuredClone(conversation);
  if (database) await run("readwrite", (s) => s.put(copy));
  else memory.set(copy.id, copy);
}

export async function remove(id) {
  if (database) await run("readwrite", (s) => s.delete(id));
  else memory.delete(id);
}

export async function clear() {
  if (database) await run("readwrite", (s) => s.clear());
  else memory.clear();
}
