// The dialog that has the server download a model, with its progress, over Ollama's `/api/pull`.

import { pull } from "./api.js";
import { $, size } from "./dom.js";

export class Download {
  #controller;
  #onDone;

  constructor(onDone) {
    this.#onDone = onDone;
    $("download-start").addEventListener("click", () => this.#start());
    $("download-name").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#start();
    });
    $("download").addEventListener("close", () => this.#controller?.abort());
  }

  open() {
    this.#show("");
    $("download-bar").hidden = true;
    $("download").showModal();
    $("download-name").focus();
  }

  #show(text, isError = false) {
    $("download-state").textContent = text;
    $("download-state").classList.toggle("failed", isError);
  }

  async #start() {
    const name = $("download-name").value.trim();
    if (!name || this.#controller) return;
    this.#controller = new AbortController();
    $("download-start").disabled = true;
    const bar = $("download-bar");
    bar.removeAttribute("value");
    bar.hidden = false;
    this.#show(`Asking for ${name}`);
    const parts = new Map(); // a model may be several files
    try {
      await pull(name, this.#controller.signal, (report) => this.#report(report, parts, bar));
      bar.value = 1;
      this.#show(`${name} is ready.`);
      await this.#onDone(name);
    } catch (error) {
      bar.hidden = true;
      if (error.name === "AbortError") this.#show("Stopped. The next attempt resumes where this one ended.");
      else if (error.status === 404 || error.status === 405)
        this.#show(`This server cannot download models. On its machine, run: roci pull ${name}`, true);
      else this.#show(error.message, true);
    }
    this.#controller = undefined;
    $("download-start").disabled = false;
  }

  #report({ status, digest, total, completed }, parts, bar) {
    if (total) parts.set(digest ?? status, [completed ?? 0, total]);
    const sum = (column) => [...parts.values()].reduce((all, part) => all + part[column], 0);
    const [done, all] = [sum(0), sum(1)];
    if (all) bar.value = done / all;
    else bar.removeAttribute("value");
    this.#show(all ? `${status} · ${size(done)} of ${size(all)}` : (status ?? ""));
  }
}
