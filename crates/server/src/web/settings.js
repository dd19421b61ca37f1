// The settings dialog: system prompt, sampling and key. An empty field is a choice left to the server.

import { apiKey, setApiKey } from "./api.js";
import { SETTINGS, setDefaults } from "./conversation.js";

export class Settings {
  #dialog;

  constructor(dialog) {
    this.#dialog = dialog;
  }

  #field(id) {
    return this.#dialog.querySelector(`#${id}`);
  }

  /** Opens the dialog on a conversation; resolves to whether something was saved. */
  edit(conversation, focus) {
    const { settings } = conversation;
    for (const name of SETTINGS) this.#field(name).value = settings[name] ?? "";
    this.#field("system").value = settings.system ?? "";
    this.#field("stop-strings").value = (settings.stop ?? []).join("\n");
    this.#field("api-key").value = apiKey();
    this.#field("as-default").checked = false;
    this.#dialog.returnValue = "cancel";
    this.#dialog.showModal();
    this.#field(focus ?? "system").focus();
    return new Promise((resolve) =>
      this.#dialog.addEventListener(
        "close",
        () => {
          if (this.#dialog.returnValue !== "save") return resolve(false);
          conversation.settings = this.#read();
          if (this.#field("as-default").checked) setDefaults(conversation.settings);
          setApiKey(this.#field("api-key").value.trim());
          resolve(true);
        },
        { once: true },
      ),
    );
  }

  #read() {
    const settings = {};
    for (const name of SETTINGS) {
      const text = this.#field(name).value;
      if (text !== "") settings[name] = Number(text);
    }
    const system = this.#field("system").value.trim();
    if (system) settings.system = system;
    const stop = this.#field("stop-strings").value.split("\n").filter(Boolean);
    if (stop.length) settings.stop = stop;
    return settings;
  }
}
