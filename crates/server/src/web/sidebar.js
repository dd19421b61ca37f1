// The list of conversations: open, search, rename (double click or F2), delete; a drawer on small screens.

export class Sidebar {
  #root;
  #on;
  #all = [];
  #now;

  constructor(root, on) {
    this.#root = root;
    this.#on = on;
    this.#find("#new-chat").addEventListener("click", on.onNew);
    this.#find("#filter").addEventListener("input", () => this.#list());
    this.#find("#export").addEventListener("click", on.onExport);
    this.#find("#clear").addEventListener("click", on.onClear);
    document.getElementById("scrim").addEventListener("click", () => this.close());
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  draw(conversations, now) {
    this.#all = conversations;
    this.#now = now;
    this.#list();
  }

  toggle() {
    if (this.#root.classList.contains("open")) return this.close();
    this.#root.classList.add("open");
    document.getElementById("scrim").hidden = false;
    document.getElementById("menu").setAttribute("aria-expanded", "true");
    this.#find("#new-chat").focus();
  }

  close() {
    this.#root.classList.remove("open");
    document.getElementById("scrim").hidden = true;
    document.getElementById("menu").setAttribute("aria-expanded", "false");
  }

  #find(selector) {
    return this.#root.querySelector(selector);
  }

  #list() {
    const wanted = this.#find("#filter").value.trim().toLowerCase();
    const matches = (c) => !wanted || c.title.toLowerCase().includes(wanted) || c.messages.some((m) => m.content.toLowerCase().includes(wanted));
    this.#find("#conversations").replaceChildren(...this.#all.filter(matches).map((c) => this.#item(c)));
  }

  #item(conversation) {
    const item = document.createElement("li");
    item.classList.toggle("now", conversation.id === this.#now);
    const open = document.createElement("button");
    open.type = "button";
    open.className = "open";
    open.textContent = conversation.title;
    open.title = conversation.title;
    if (conversation.id === this.#now) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => this.#on.onOpen(conversation.id));
    open.addEventListener("dblclick", () => this.#rename(item, conversation));
    open.addEventListener("keydown", (event) => {
      if (event.key === "F2") this.#rename(item, conversation);
      if (event.key === "Delete") this.#on.onRemove(conversation.id);
    });
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "more";
    remove.textContent = "✕";
    remove.setAttribute("aria-label", `Delete ${conversation.title}`);
    remove.addEventListener("click", () => this.#on.onRemove(conversation.id));
    item.append(open, remove);
    return item;
  }

  #rename(item, conversation) {
    const box = document.createElement("input");
    box.value = conversation.title;
    box.className = "wide";
    box.setAttribute("aria-label", "Title");
    let isOver = false;
    const end = (title) => {
      if (isOver) return;
      isOver = true;
      if (title) this.#on.onRename(conversation.id, title);
      else this.#list();
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(box.value);
      else if (event.key === "Escape") end();
      event.stopPropagation();
    });
    box.addEventListener("blur", () => end(box.value));
    item.replaceChildren(box);
    box.select();
  }
}
