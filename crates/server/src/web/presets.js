// Named sets of sampling settings: a few of ours, and the user's own, kept in this browser.

import { recall, remember } from "./dom.js";

const KEY = "roci.presets";
/** What a preset holds; the rest of the settings belongs to the conversation. */
export const FIELDS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"];

const BUILT_IN = {
  "The server's defaults": {},
  "Greedy: always the most likely token": { temperature: 0 },
  "Precise: code and facts": { temperature: 0.2, top_p: 0.9 },
  Balanced: { temperature: 0.7, top_p: 0.95, min_p: 0.05 },
  "Creative: stories and ideas": { temperature: 1.1, top_p: 0.98, min_p: 0.02, presence_penalty: 0.3 },
};

function own() {
  const kept = recall(KEY);
  return kept && typeof kept === "object" ? kept : {};
}

/** name -> settings */
export function presets() {
  return new Map([...Object.entries(BUILT_IN), ...Object.entries(own())]);
}

export function isOwn(name) {
  return name in own();
}

export function keepPreset(name, settings) {
  remember(KEY, { ...own(), [name]: settings });
}

export function dropPreset(name) {
  const { [name]: _, ...rest } = own();
  remember(KEY, rest);
}

/** The preset that has exactly these settings. */
export function presetOf(settings) {
  const isSame = (preset) => FIELDS.every((field) => preset[field] === settings[field]);
  return [...presets()].find(([, preset]) => isSame(preset))?.[0];
}
