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

/** A number of bytes as the terminal shows it: three digits, decimal units. */
export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let unit = 0;
  for (; value >= 999.5 && unit < units.length - 1; unit += 1) value /= 1000;
  const digits = unit === 0 || value >= 100 ? 0 : value < 10 ? 2 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
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
