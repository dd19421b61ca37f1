// Small makers of elements, for all scripts of the pages. Text given to them stays text.

export const $ = (id) => document.getElementById(id);

export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** `label` is what is read aloud; `text` is what is seen, where it differs. */
export function button(label, action, text) {
  const made = element("button", "", text ?? label);
  made.type = "button";
  if (text !== undefined) {
    made.setAttribute("aria-label", label);
    made.title = label;
  }
  made.addEventListener("click", action);
  return made;
}

/** A button that copies what `text` returns. */
export function copyButton(text) {
  const made = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text());
      made.textContent = "Copied";
    } catch {
      made.textContent = "No access";
    }
    setTimeout(() => (made.textContent = "Copy"), 1500);
  });
  return made;
}

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = bytes / 1024;
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${value.toFixed(value < 100 ? 1 : 0)} ${units[unit]}`;
}

/** What the browser keeps for this page by name; nothing where it keeps nothing. */
export function recall(name) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? undefined;
  } catch {
    return undefined;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // No storage: it lasts as long as the page.
  }
}
