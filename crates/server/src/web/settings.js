// The settings dialog: system prompt, sampling, presets and key. An empty field is a choice left to the server, and
// the field says what the server chooses.

import { apiKey, setApiKey } from "./api.js";
import { MAX_ANSWER, SETTINGS, setDefaults } from "./conversation.js";
import { FIELDS, dropPreset, isOwn, keepPreset, presetOf, presets } from "./presets.js";

export class Settings {
  #dialog;

  constructor(dialog) {
    this.#dialog = dialog;
    this.#field("preset").addEventListener("change", () => this.#apply());
    for (const name of FIELDS) this.#field(name).addEventListener("input", () => this.#drawPresets());
    this.#field("preset-keep").addEventListener("click", () => this.#keep());
    this.#field("preset-name").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#keep();
    });
    this.#field("preset-drop").addEventListener("click", () => {
      dropPreset(this.#field("preset").value);
      this.#drawPresets();
    });
  }

  #field(id) {
    return this.#dialog.querySelector(`#${id}`);
  }

  /** Opens the dialog on a conversation; resolves to whether something was saved. `usual`: the server's sampling. */
  edit(conversation, usual, focus) {
    const { settings } = conversation;
    for (const name of SETTINGS) this.#field(name).value = settings[name] ?? "";
    this.#drawUsual(usual);
    this.#field("system").value = settings.system ?? "";
    this.#field("stop-strings").value = (settings.stop ?? []).join("\n");
    this.#field("api-key").value = apiKey();
    this.#field("as-default").checked = false;
    this.#field("preset-name").value = "";
    this.#drawPresets();
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

  #drawUsual(usual) {
    for (const name of ["temperature", "top_p", "top_k", "min_p"]) {
      const value = usual[name];
      const isOff = (name === "top_k" || name === "min_p") && value === 0;
      this.#field(name).placeholder =
        value === undefined ? "the server's" : isOff ? "off" : `the server's: ${Number(value.toPrecision(3))}`;
    }
    this.#field("max_tokens").placeholder = String(MAX_ANSWER);
  }

  #drawPresets() {
    const list = this.#field("preset");
    const now = presetOf(this.#sampling());
    list.replaceChildren(
      ...(now ? [] : [new Option("Custom", "")]),
      ...[...presets().keys()].map((name) => new Option(name, name)),
    );
    list.value = now ?? "";
    this.#field("preset-drop").hidden = !isOwn(list.value);
  }

  #apply() {
    const preset = presets().get(this.#field("preset").value);
    if (!preset) return;
    for (const name of FIELDS) this.#field(name).value = preset[name] ?? "";
    this.#drawPresets();
  }

  #keep() {
    const name = this.#field("preset-name").value.trim();
    if (!name || (presets().has(name) && !isOwn(name))) return this.#field("preset-name").focus();
    keepPreset(name, this.#sampling());
    this.#field("preset-name").value = "";
    this.#drawPresets();
  }

  #sampling() {
    const settings = this.#read();
    return Object.fromEntries(FIELDS.filter((name) => settings[name] !== undefined).map((name) => [name, settings[name]]));
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
