// The list of models in the header, and what the server says about each: its context, and what sampling it gets where a
// conversation asks for nothing. Looks again by itself at a server that does not answer.

import * as api from "./api.js";
import { recall, remember } from "./dom.js";

const CHOSEN = "roci.model";
const RETRY_EVERY_MS = 5000;

export class Models {
  #select;
  #on;
  #found = new Map();
  #retry;
  #wasAway = false;

  /** `on`: onChange(), onState({ text, isKeyWanted, isAway, isBack }). */
  constructor(select, on) {
    this.#select = select;
    this.#on = on;
    select.addEventListener("change", () => {
      remember(CHOSEN, select.value);
      on.onChange(select.value);
    });
  }

  get chosen() {
    return this.#select.value;
  }

  /** Shows a conversation's model, where the server still has it. */
  choose(name) {
    if (name && this.#found.has(name)) this.#select.value = name;
  }

  context(name = this.chosen) {
    return this.#found.get(name)?.context;
  }

  bytes(name) {
    return this.#found.get(name)?.bytes;
  }

  /** What a request that asks for nothing gets. */
  sampling(name = this.chosen) {
    return this.#found.get(name)?.sampling ?? {};
  }

  async load(wanted) {
    clearTimeout(this.#retry);
    try {
      const found = await api.models();
      const name = wanted ?? (this.chosen || recall(CHOSEN));
      this.#found = new Map(found.map((model) => [model.id, model]));
      this.#select.replaceChildren(...found.map((model) => new Option(model.id, model.id)));
      this.choose(name);
      this.#on.onState({ text: found.length ? "" : "The server has no model yet.", isBack: this.#wasAway });
      this.#wasAway = false;
    } catch (error) {
      const isAway = error.status === 0;
      if (isAway) {
        this.#retry = setTimeout(() => this.load(wanted), RETRY_EVERY_MS);
        this.#wasAway = true;
      }
      this.#on.onState({ text: error.message, isAway, isKeyWanted: error.status === 401 || error.status === 403 });
    }
    this.#on.onChange();
  }
}
