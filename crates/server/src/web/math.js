// Formulas, typeset by KaTeX. Its code and fonts are loaded from this server when the first formula comes; until then,
// and where it cannot read one, the source is shown. Bounded: what is long, deep or expands without end stays source.

const FOLDER = "assets/katex-0.19.1/";
const MAX_CHARACTERS = 4000;
const MAX_DOM_DEPTH = 200;
const MAX_KEPT = 400;
const OPTIONS = { throwOnError: true, strict: "ignore", trust: false, maxExpand: 200, maxSize: 20 };

const kept = new Map(); // formulas that were typeset, for answers that are drawn again while they grow
let waiting = []; // shown as source until KaTeX is there
let katex;
let loading;

/** A formula as an element. */
export function formula(source, isDisplay) {
  const made = document.createElement("span");
  made.className = isDisplay ? "math display" : "math";
  made.textContent = isDisplay ? `\\[${source}\\]` : `\\(${source}\\)`;
  if (isDisplay) made.tabIndex = 0;
  if (katex) typeset(made, source, isDisplay);
  else {
    waiting.push([made, source, isDisplay]);
    loading ??= load();
  }
  return made;
}

/** Resolves when every formula so far is typeset. */
export async function settled() {
  await loading;
}

async function load() {
  const sheet = document.createElement("link");
  sheet.rel = "stylesheet";
  sheet.href = `${FOLDER}katex.min.css`;
  document.head.append(sheet);
  try {
    await import(new URL(`${FOLDER}katex.min.js`, document.baseURI).href);
    katex = globalThis.katex;
  } catch {
    // The next formula tries again; until then the sources stay.
    loading = undefined;
    return;
  }
  for (const [made, source, isDisplay] of waiting) typeset(made, source, isDisplay);
  waiting = [];
}

function typeset(target, source, isDisplay) {
  const key = `${isDisplay ? "d" : "i"}${source}`;
  if (!kept.has(key)) {
    if (kept.size >= MAX_KEPT) kept.delete(kept.keys().next().value);
    kept.set(key, tree(source, isDisplay));
  }
  const made = kept.get(key);
  if (made) target.replaceChildren(made.cloneNode(true));
  else target.classList.add("raw");
}

function tree(source, isDisplay) {
  if (source.length > MAX_CHARACTERS || !source.trim()) return undefined;
  const made = document.createElement("span");
  try {
    katex.render(source.trim(), made, { ...OPTIONS, displayMode: isDisplay });
  } catch {
    return undefined;
  }
  return depth(made) > MAX_DOM_DEPTH ? undefined : made.firstElementChild;
}

/** Without recursion: what is measured may be deep. */
function depth(root) {
  let deepest = 0;
  const open = [[root, 1]];
  while (open.length) {
    const [node, level] = open.pop();
    if (level > deepest) deepest = level;
    if (deepest > MAX_DOM_DEPTH) break;
    for (const child of node.children) open.push([child, level + 1]);
  }
  return deepest;
}
