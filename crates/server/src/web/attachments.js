// Text files to send along: by the button, by dropping, by pasting. Refuses what is not text or too large.

import { size } from "./view.js";

const MAX_BYTES = 1 << 20;

export class Attachments {
  #list;
  #files = [];
  #say;

  constructor(list, button, input, target, say) {
    this.#list = list;
    this.#say = say;
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      // A copy: the list is emptied with the field.
      this.#add([...input.files]);
      input.value = "";
    });
    target.addEventListener("dragover", (event) => {
      event.preventDefault();
      target.classList.add("drop");
    });
    target.addEventListener("dragleave", () => target.classList.remove("drop"));
    target.addEventListener("drop", (event) => {
      event.preventDefault();
      target.classList.remove("drop");
      this.#add([...event.dataTransfer.files]);
    });
    target.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) {
        event.preventDefault();
        this.#add([...event.clipboardData.files]);
      }
    });
  }

  /** The files attached so far; the list is empty afterwards. */
  take() {
    const taken = this.#files;
    this.#files = [];
    this.#draw();
    return taken;
  }

  async #add(files) {
    this.#say("");
    for (const file of files) {
      if (file.size > MAX_BYTES) {
        this.#say(`${file.name} is ${size(file.size)}; the most is ${size(MAX_BYTES)}.`);
        continue;
      }
      try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
        if (text.includes("\0")) throw new TypeError();
        this.#files.push({ name: file.name, text });
      } catch {
        this.#say(`${file.name} is not a text file.`);
      }
    }
    this.#draw();
  }

  #draw() {
    this.#list.replaceChildren(
      ...this.#files.map((file) => {
        const item = document.createElement("li");
        const chip = document.createElement("span");
        chip.className = "file-chip";
        const remove = document.createElement("button");
        remove.type = "button";
        remove.textContent = "✕";
        remove.setAttribute("aria-label", `Remove ${file.name}`);
        remove.addEventListener("click", () => {
          this.#files = this.#files.filter((f) => f !== file);
          this.#draw();
        });
        chip.append(`${file.name} · ${size(file.text.length)}`, remove);
        item.append(chip);
        return item;
      }),
    );
  }
}
