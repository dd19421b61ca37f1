// The colour theme: as the system, light or dark; kept in this browser. Loaded by both pages before they draw.
const KEY = "roci.theme";
const THEMES = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

export function current() {
  try {
    const kept = localStorage.getItem(KEY);
    return THEMES.includes(kept) ? kept : "system";
  } catch {
    return "system";
  }
}

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = SIGNS[theme];
    button.setAttribute("aria-label", `Colour theme: ${theme === "system" ? "as the system" : theme}`);
  }
}

function next() {
  const theme = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length];
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // No storage in this browser: the choice lasts as long as the page.
  }
  apply(theme);
}

apply(current());
document.addEventListener("DOMContentLoaded", () => {
  apply(current());
  document.getElementById("theme")?.addEventListener("click", next);
});
