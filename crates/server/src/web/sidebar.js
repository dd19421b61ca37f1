// The list of conversations: open, find a word in all of them, and a menu for each (rename, save, delete). It folds
// away on wide screens and is a drawer on small ones.

import { $, button, element, recall, remember } from "./dom.js";

const FOLDED = "roci.folded";
const SNIPPET = 60; // characters on each side of what was found
const ACTIONS = [
  ["Rename", "onRename"],
  ["Save as Markdown", "onSaveMarkdown"],
  ["Save as JSON", "onSaveJson"],
  ["Share as a page", "onSavePage"],
  ["Delete", "onRemove"],
];

export class Sidebar {
  #root = $("sidebar");
  #menu = $("conversation-menu");
  #on;
  #all = [];
  #now;
  #drawer = matchMedia("(max-width: 760px)");

  constructor(on) {
    this.#on = on;
    $("new-chat").addEventListener("click", on.onNew);
    $("filter").addEventListener("input", () => this.#list());
    $("filter").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.#root.querySelector("#conversations .open")?.click();
    });
    $("export").addEventListener("click", on.onExport);
    $("clear").addEventListener("click", on.onClear);
    $("scrim").addEventListener("click", () => this.close());
    $("menu").addEventListener("click", () => this.toggle());
    this.#root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#drawer.matches) this.close();
    });
    this.#drawer.addEventListener("change", () => this.#draw());
    document.body.classList.toggle("folded", recall(FOLDED) === true);
    this.#draw();
  }

  draw(conversations, now) {
    this.#all = conversations;
    this.#now = now;
    this.#list();
  }

  get #isOpen() {
    return this.#drawer.matches ? this.#root.classList.contains("open") : !document.body.classList.contains("folded");
  }

  #draw() {
    $("scrim").hidden = !(this.#drawer.matches && this.#isOpen);
    $("menu").setAttribute("aria-expanded", String(this.#isOpen));
  }

  toggle() {
    if (this.#isOpen) return this.close(true);
    if (this.#drawer.matches) {
      this.#root.classList.add("open");
      $("new-chat").focus();
    } else this.#fold(false);
    this.#draw();
  }

  /** On small screens, whenever something was chosen; on wide ones only when asked to. */
  close(isAsked = false) {
    this.#root.classList.remove("open");
    if (isAsked && !this.#drawer.matches) this.#fold(true);
    this.#draw();
  }

  #fold(isFolded) {
    document.body.classList.toggle("folded", isFolded);
    remember(FOLDED, isFolded);
  }

  /** Puts the cursor into the search. */
  find() {
    if (!this.#isOpen) this.toggle();
    $("filter").select();
  }

  #list() {
    const wanted = $("filter").value.trim().toLowerCase();
    const found = this.#all.map((conversation) => ({
      conversation,
      ...(wanted ? search(conversation, wanted) : { isFound: true }),
    }));
    const items = found.filter((entry) => entry.isFound).map((entry) => this.#item(entry));
    if (wanted && !items.length) items.push(element("li", "none", "Nothing found."));
    $("conversations").replaceChildren(...items);
  }

  #item({ conversation, message, snippet }) {
    const item = element("li", conversation.id === this.#now ? "now" : "");
    const open = button(conversation.title, () => this.#on.onOpen(conversation.id, message));
    open.className = "open";
    open.title = conversation.title;
    if (snippet) open.append(element("span", "snippet", snippet[0], element("mark", "", snippet[1]), snippet[2]));
    if (conversation.id === this.#now) open.setAttribute("aria-current", "true");
    open.addEventListener("dblclick", () => this.#rename(item, conversation));
    open.addEventListener("keydown", (event) => {
      if (event.key === "F2") this.#rename(item, conversation);
      if (event.key === "Delete") this.#on.onRemove(conversation);
    });
    const more = button(`More for ${conversation.title}`, () => this.#openMenu(more, item, conversation), "⋯");
    more.className = "more";
    more.setAttribute("aria-haspopup", "menu");
    item.append(open, more);
    return item;
  }

  #openMenu(anchor, item, conversation) {
    const act = (name) => {
      this.#menu.hidePopover();
      if (name === "onRename") this.#rename(item, conversation);
      else this.#on[name](conversation);
    };
    const choices = ACTIONS.map(([label, name]) => {
      const choice = button(label, () => act(name));
      choice.setAttribute("role", "menuitem");
      if (name === "onRemove") choice.className = "danger";
      return choice;
    });
    this.#menu.replaceChildren(...choices);
    this.#menu.onkeydown = (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choices.at((choices.indexOf(document.activeElement) + step) % choices.length).focus();
    };
    this.#menu.showPopover();
    const place = anchor.getBoundingClientRect();
    const [width, height] = [this.#menu.offsetWidth, this.#menu.offsetHeight];
    this.#menu.style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
    this.#menu.style.top = `${place.bottom + height > innerHeight ? Math.max(8, place.top - height) : place.bottom}px`;
    choices[0].focus();
  }

  #rename(item, conversation) {
    const box = element("input", "wide");
    box.value = conversation.title;
    box.setAttribute("aria-label", "Title");
    box.enterKeyHint = "done";
    let isOver = false;
    const end = (title) => {
      if (isOver) return;
      isOver = true;
      if (title?.trim()) this.#on.onRename(conversation, title.trim());
      else this.#list();
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(box.value);
      else if (event.key === "Escape") end();
      event.stopPropagation();
    });
    box.addEventListener("blur", () => end(box.value));
    item.replaceChildren(box);
    box.focus();
    box.select();
  }
}

/** Where a conversation has the words: in its title, or in a message of any of its branches. */
function search(conversation, wanted) {
  for (const message of conversation.nodes) {
    const at = message.content.toLowerCase().indexOf(wanted);
    if (at < 0) continue;
    const end = at + wanted.length;
    const snippet = [
      message.content.slice(Math.max(0, at - SNIPPET), at),
      message.content.slice(at, end),
      message.content.slice(end, end + SNIPPET),
    ];
    return { isFound: true, message: message.id, snippet };
  }
  return { isFound: conversation.title.toLowerCase().includes(wanted) };
}
