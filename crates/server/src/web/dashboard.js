// The operator's page: every two seconds it reads /metrics, for the charts of the last five minutes, and /v1/status, for
// the tables of devices, models and keys. If a server has no /v1/status, the tables come from the metrics.

import { request } from "./api.js";
import { Chart } from "./charts.js";
import { $, element, size } from "./dom.js";
import { histogramQuantile, parse, quantile, total } from "./prometheus.js";

const EVERY_MS = 2000;

// A counter appears with its first count: what is not there yet was zero.
const rate = (name) => (old, now, seconds) => {
  const [a, b] = [total(old, name) ?? 0, total(now, name)];
  return b === undefined ? undefined : Math.max(0, b - a) / seconds;
};
const gauge =
  (name, scale = 1) =>
  (_, now) => {
    const value = total(now, name);
    return value === undefined ? undefined : value * scale;
  };
const spread = (name) => [0.5, 0.9, 0.99].map((q) => [`${q * 100} %`, (old, now) => quantile(old, now, name, q)]);
const share = (part, whole) => (old, now) => {
  const d = (name) => (total(now, name) ?? 0) - (total(old, name) ?? 0);
  return d(whole) > 0 ? (100 * d(part)) / d(whole) : undefined;
};

const CHARTS = [
  {
    title: "Tokens a second",
    lines: [
      ["generated", rate("roci_generated_tokens_total")],
      ["prompt", rate("roci_prompt_tokens_total")],
    ],
  },
  {
    title: "Requests",
    lines: [
      ["running", gauge("roci_requests_running")],
      ["waiting", gauge("roci_requests_waiting")],
    ],
  },
  { title: "Time to first token", unit: " s", lines: spread("roci_time_to_first_token_seconds") },
  { title: "Between tokens", unit: " s", lines: spread("roci_inter_token_seconds") },
  { title: "Time in the queue", unit: " s", lines: spread("roci_queue_time_seconds") },
  { title: "KV cache in use", unit: " %", max: 100, lines: [["blocks", gauge("roci_kv_used_ratio", 100)]] },
  {
    title: "Prompt tokens from the prefix cache",
    unit: " %",
    max: 100,
    lines: [["hits", share("roci_prefix_hit_tokens_total", "roci_prompt_tokens_total")]],
  },
  { title: "Memory", unit: " MB", lines: [["process", gauge("roci_memory_resident_bytes", 1e-6)]] },
];
const charts = CHARTS.map((chart) => new Chart(chart));
const TILES = [
  ["tokens/s generated", () => charts[0].last(0), 1, ""],
  ["running", () => charts[1].last(0), 0, ""],
  ["waiting", () => charts[1].last(1), 0, ""],
  ["answers in all", () => previous && total(previous.samples, "roci_answers_total"), 0, ""],
  ["tokens generated in all", () => previous && total(previous.samples, "roci_generated_tokens_total"), 0, ""],
  ["KV cache", () => charts[5].last(0), 0, " %"],
];
const tiles = TILES.map(() => element("div", "value", "–"));

let previous; // { time, samples }
let isPaused = false;
let hasStatus = true;

// ---------------------------------------------------------------- tables

const count = (value) => (value === undefined || value === null ? "–" : Math.round(value).toLocaleString("en"));
const limited = (value, limit) => (limit === undefined || limit === null ? count(value) : `${count(value)} of ${count(limit)}`);
const percentiles = (spread) =>
  [spread?.p50, spread?.p90, spread?.p99]
    .map((ms) => (ms === undefined || ms === null ? "–" : Number(ms.toPrecision(3))))
    .join(" / ");

function usage(part, whole, label) {
  if (!whole) return "–";
  const meter = element("meter");
  Object.assign(meter, { min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, value: part / whole });
  meter.setAttribute("aria-label", label);
  return element("span", "usage", meter, `${size(part)} of ${size(whole)}`);
}

function table(id, title, heads, rows) {
  const section = $(id);
  section.hidden = !rows.length;
  if (!rows.length) return;
  const cells = (names, kind) =>
    element(
      "tr",
      "",
      ...names.map((cell, column) => {
        const made = element(kind, column ? "" : "name", cell);
        if (kind === "th") made.scope = "col";
        return made;
      }),
    );
  const made = element(
    "table",
    "",
    element("caption", "", title),
    element("thead", "", cells(heads, "th")),
    element("tbody", "", ...rows.map((row) => cells(row, "td"))),
  );
  section.replaceChildren(made);
}

function drawStatus(status) {
  table(
    "devices",
    "Devices",
    ["device", "memory in use"],
    status.devices.map((device) => [
      device.name,
      usage(device.total_bytes - device.free_bytes, device.total_bytes, `Memory of ${device.name}`),
    ]),
  );
  table(
    "models",
    "Models",
    ["model", "state", "on", "weights", "KV cache", "running", "waiting", "first token, ms", "between tokens, ms", "tokens/s"],
    status.models.map((model) => [
      model.name,
      model.state,
      model.device ?? "–",
      model.weights_bytes ? size(model.weights_bytes) : size(model.file_bytes ?? 0),
      model.kv ? usage(model.kv.used_ratio * model.kv_bytes, model.kv_bytes, `KV cache of ${model.name}`) : "–",
      limited(model.running, model.max_running),
      limited(model.waiting, model.max_queue),
      percentiles(model.time_to_first_token_ms),
      percentiles(model.inter_token_ms),
      model.tokens_per_second === undefined ? "–" : model.tokens_per_second.toFixed(1),
    ]),
  );
  table(
    "keys",
    "Keys",
    ["key", "running", "requests", "prompt tokens", "generated tokens", "tokens today", "tokens this month"],
    (status.keys ?? []).map((key) => [
      key.name || "no key",
      limited(key.running, key.concurrent),
      count(key.total?.requests),
      count(key.total?.prompt_tokens),
      count(key.total?.generated_tokens),
      limited(key.day?.tokens, key.day?.limit),
      limited(key.month?.tokens, key.month?.limit),
    ]),
  );
}

/** The same, from the metrics. */
function statusOf(samples) {
  const of = (name, label, value) =>
    samples
      .get(name)
      ?.filter((s) => s.labels[label] === value)
      .reduce((sum, s) => sum + s.value, 0);
  const values = (name, label) => [...new Set((samples.get(name) ?? []).map((s) => s.labels[label]))];
  const spreadOf = (name, model) =>
    Object.fromEntries(
      [
        [50, 0.5],
        [90, 0.9],
        [99, 0.99],
      ].map(([p, q]) => {
        const seconds = histogramQuantile(samples, name, q, (labels) => labels.model_name === model);
        return [`p${p}`, seconds === undefined ? undefined : seconds * 1000];
      }),
    );
  const models = values("roci_weights_bytes", "model_name").map((name) => ({
    name,
    state: "ready",
    weights_bytes: of("roci_weights_bytes", "model_name", name),
    kv_bytes: of("roci_kv_bytes", "model_name", name),
    kv: { used_ratio: of("roci_kv_used_ratio", "model_name", name) },
    running: of("roci_requests_running", "model_name", name),
    waiting: of("roci_requests_waiting", "model_name", name),
    time_to_first_token_ms: spreadOf("roci_time_to_first_token_seconds", name),
    inter_token_ms: spreadOf("roci_inter_token_seconds", name),
  }));
  const tokens = (key, kind) =>
    (samples.get("roci_key_tokens_total") ?? [])
      .filter((s) => s.labels.key === key && s.labels.kind === kind)
      .reduce((sum, s) => sum + s.value, 0);
  const keys = values("roci_key_requests_total", "key").map((name) => ({
    name,
    total: {
      requests: of("roci_key_requests_total", "key", name),
      prompt_tokens: tokens(name, "prompt"),
      generated_tokens: tokens(name, "generated"),
    },
  }));
  return { devices: [], models, keys };
}

async function readStatus(samples) {
  if (hasStatus) {
    try {
      return await (await request("v1/status")).json();
    } catch (error) {
      if (error.status !== 404) throw error;
      hasStatus = false;
    }
  }
  return statusOf(samples);
}

// ---------------------------------------------------------------- reading and drawing

function draw() {
  charts.forEach((chart) => chart.draw());
  TILES.forEach(([, value, digits, unit], index) => {
    const v = value();
    tiles[index].textContent = v === undefined ? "–" : (v >= 1000 ? count(v) : v.toFixed(digits)) + unit;
  });
}

async function read() {
  if (isPaused || document.hidden) return;
  try {
    const samples = parse(await (await request("metrics")).text());
    const now = { time: performance.now(), samples };
    if (previous) {
      const seconds = (now.time - previous.time) / 1000;
      CHARTS.forEach((chart, index) =>
        charts[index].push(chart.lines.map(([, measure]) => measure(previous.samples, samples, seconds))),
      );
    }
    previous = now;
    draw();
    drawStatus(await readStatus(samples));
    $("state").textContent = "live";
    $("banner").hidden = true;
  } catch (error) {
    $("state").textContent = "not connected";
    $("banner").textContent =
      error.status === 401 ? "The server asks for an API key: enter it in the chat page's settings, in this tab." : error.message;
    $("banner").hidden = false;
  }
}

$("tiles").replaceChildren(...TILES.map(([name], index) => element("div", "tile", tiles[index], element("div", "name", name))));
$("charts").replaceChildren(...charts.map((chart) => chart.element));
$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").textContent = isPaused ? "Resume" : "Pause";
  $("pause").setAttribute("aria-pressed", String(isPaused));
  if (isPaused) $("state").textContent = "paused";
});
await read();
setInterval(read, EVERY_MS);
