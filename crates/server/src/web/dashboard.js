// The operator's page: reads /metrics every two seconds and draws the last five minutes.

import { request } from "./api.js";
import { parse, quantile, total } from "./prometheus.js";

const EVERY_MS = 2000;
const KEEP = 150;
const $ = (id) => document.getElementById(id);

// A counter appears with its first count: what is not there yet was zero.
const rate = (name) => (old, now, seconds) => {
  const [a, b] = [total(old, name) ?? 0, total(now, name)];
  return b === undefined ? undefined : Math.max(0, b - a) / seconds;
};
const gauge = (name, scale = 1) => (_, now) => {
  const value = total(now, name);
  return value === undefined ? undefined : value * scale;
};
const spread = (name, q) => (old, now) => quantile(old, now, name, q);
const share = (part, whole) => (old, now) => {
  const d = (name) => (total(now, name) ?? 0) - (total(old, name) ?? 0);
  return d(whole) > 0 ? (100 * d(part)) / d(whole) : undefined;
};

const CHARTS = [
  { title: "Tokens a second", unit: "", lines: [["generated", rate("roci_generated_tokens_total")], ["prompt", rate("roci_prompt_tokens_total")]] },
  { title: "Requests", unit: "", lines: [["running", gauge("roci_requests_running")], ["waiting", gauge("roci_requests_waiting")]] },
  { title: "Time to first token", unit: " s", lines: [["median", spread("roci_time_to_first_token_seconds", 0.5)], ["95 %", spread("roci_time_to_first_token_seconds", 0.95)]] },
  { title: "Between tokens", unit: " s", lines: [["median", spread("roci_inter_token_seconds", 0.5)], ["95 %", spread("roci_inter_token_seconds", 0.95)]] },
  { title: "Time in the queue", unit: " s", lines: [["median", spread("roci_queue_time_seconds", 0.5)], ["95 %", spread("roci_queue_time_seconds", 0.95)]] },
  { title: "KV cache in use", unit: " %", max: 100, lines: [["blocks", gauge("roci_kv_used_ratio", 100)]] },
  { title: "Prompt tokens from the prefix cache", unit: " %", max: 100, lines: [["hits", share("roci_prefix_hit_tokens_total", "roci_prompt_tokens_total")]] },
  { title: "Memory", unit: " MB", lines: [["process", gauge("roci_memory_resident_bytes", 1e-6)]] },
];
const TILES = [
  ["tokens/s generated", () => last(0, 0), 1, ""],
  ["running", () => last(1, 0), 0, ""],
  ["waiting", () => last(1, 1), 0, ""],
  ["answers in all", () => previous && total(previous.samples, "roci_answers_total"), 0, ""],
  ["tokens generated in all", () => previous && total(previous.samples, "roci_generated_tokens_total"), 0, ""],
  ["KV cache", () => last(5, 0), 0, " %"],
];

const series = CHARTS.map((chart) => chart.lines.map(() => []));
let previous; // { time, samples }
let isPaused = false;

function last(chart, line) {
  return series[chart][line].at(-1);
}

function format(value, digits = 3) {
  if (value === undefined || Number.isNaN(value)) return "–";
  if (value >= 1000) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(digits)).toString();
}

function draw() {
  CHARTS.forEach((chart, c) => {
    const figure = $("charts").children[c];
    const values = series[c].flat().filter((v) => v !== undefined);
    const top = chart.max ?? niceTop(Math.max(0, ...values));
    const [width, height, left, bottom] = [400, 140, 34, 14];
    const x = (i, n) => left + ((KEEP - n + i) / (KEEP - 1)) * (width - left);
    const y = (v) => (height - bottom) * (1 - Math.min(v / top, 1)) + 4;
    const path = (points) => {
      let text = "";
      let isDown = false;
      points.forEach((v, i) => {
        if (v === undefined) isDown = false;
        else {
          text += `${isDown ? "L" : "M"}${x(i, points.length).toFixed(1)} ${y(v).toFixed(1)}`;
          isDown = true;
        }
      });
      return text;
    };
    const svg = figure.querySelector("svg");
    svg.replaceChildren(
      ...[0, 0.5, 1].flatMap((part) => [
        shape("line", { class: "axis", x1: left, x2: width, y1: y(part * top), y2: y(part * top) }),
        shape("text", { x: left - 4, y: y(part * top) + 3, "text-anchor": "end" }, format(part * top, 2)),
      ]),
      ...series[c].map((points, l) => shape("path", { d: path(points), stroke: `var(--series-${l + 1})` })),
    );
    chart.lines.forEach(([name], l) => {
      figure.querySelectorAll(".key")[l].textContent = `${name} ${format(last(c, l))}${chart.unit}`;
    });
    svg.setAttribute("aria-label", `${chart.title}: ${chart.lines.map(([n], l) => `${n} ${format(last(c, l))}${chart.unit}`).join(", ")}`);
  });
  TILES.forEach(([, value, digits, unit], t) => {
    const v = value();
    $("tiles").children[t].querySelector(".value").textContent =
      v === undefined ? "–" : (v >= 1000 ? Math.round(v).toLocaleString("en") : v.toFixed(digits)) + unit;
  });
}

function niceTop(value) {
  if (value <= 0) return 1;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((m) => m * scale >= value) * scale;
}

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function build() {
  $("tiles").replaceChildren(
    ...TILES.map(([name]) => {
      const tile = document.createElement("div");
      tile.className = "tile";
      const value = document.createElement("div");
      value.className = "value";
      value.textContent = "–";
      const label = document.createElement("div");
      label.className = "name";
      label.textContent = name;
      tile.append(value, label);
      return tile;
    }),
  );
  $("charts").replaceChildren(
    ...CHARTS.map((chart) => {
      const figure = document.createElement("figure");
      figure.className = "chart";
      const caption = document.createElement("figcaption");
      caption.append(chart.title);
      chart.lines.forEach(([name], l) => {
        const key = document.createElement("span");
        key.className = "key";
        key.style.setProperty("--key", `var(--series-${l + 1})`);
        key.textContent = name;
        caption.append(key);
      });
      figure.append(caption, shape("svg", { viewBox: "0 0 400 140", role: "img" }));
      return figure;
    }),
  );
}

async function read() {
  if (isPaused || document.hidden) return;
  try {
    const text = await (await request("metrics")).text();
    const now = { time: performance.now(), samples: parse(text) };
    if (previous) {
      const seconds = (now.time - previous.time) / 1000;
      CHARTS.forEach((chart, c) =>
        chart.lines.forEach(([, measure], l) => {
          series[c][l].push(measure(previous.samples, now.samples, seconds));
          if (series[c][l].length > KEEP) series[c][l].shift();
        }),
      );
    }
    previous = now;
    $("state").textContent = "live";
    $("banner").hidden = true;
    draw();
  } catch (error) {
    $("state").textContent = "not connected";
    $("banner").textContent = error.status === 401 ? "The server asks for an API key: enter it in the chat page's settings, in this tab." : error.message;
    $("banner").hidden = false;
  }
}

build();
$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").textContent = isPaused ? "Go on" : "Pause";
  $("pause").setAttribute("aria-pressed", String(isPaused));
  if (isPaused) $("state").textContent = "paused";
});
await read();
setInterval(read, EVERY_MS);
