// Line charts of the last minutes, as SVG. Knows nothing of what it plots.

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [400, 140, 34, 14];
/** Points of a line; older ones are dropped. */
export const KEEP = 150;

export function format(value, digits = 3) {
  if (value === undefined || Number.isNaN(value)) return "–";
  if (value >= 1000) return Math.round(value).toLocaleString("en");
  return Number(value.toPrecision(digits)).toString();
}

export class Chart {
  #title;
  #unit;
  #max;
  #names;
  #lines;
  #svg;
  #keys;

  constructor({ title, unit = "", max, lines }) {
    this.#title = title;
    this.#unit = unit;
    this.#max = max;
    this.#names = lines.map(([name]) => name);
    this.#lines = lines.map(() => []);
    this.#svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.#keys = this.#names.map((name, index) => {
      const key = document.createElement("span");
      key.className = "key";
      key.style.setProperty("--key", `var(--series-${index + 1})`);
      key.textContent = name;
      return key;
    });
    const caption = document.createElement("figcaption");
    caption.append(title, ...this.#keys);
    this.element = document.createElement("figure");
    this.element.className = "chart";
    this.element.append(caption, this.#svg);
    this.draw();
  }

  /** One value for each line; undefined leaves a gap. */
  push(values) {
    values.forEach((value, index) => {
      this.#lines[index].push(value);
      if (this.#lines[index].length > KEEP) this.#lines[index].shift();
    });
  }

  last(line) {
    return this.#lines[line].at(-1);
  }

  draw() {
    const values = this.#lines.flat().filter((v) => v !== undefined);
    const top = this.#max ?? niceTop(Math.max(0, ...values));
    const y = (v) => (HEIGHT - BOTTOM) * (1 - Math.min(v / top, 1)) + 4;
    this.#svg.replaceChildren(
      ...[0, 0.5, 1].flatMap((part) => [
        shape("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y(part * top), y2: y(part * top) }),
        shape("text", { x: LEFT - 4, y: y(part * top) + 3, "text-anchor": "end" }, format(part * top, 2)),
      ]),
      ...this.#lines.map((points, index) => shape("path", { d: path(points, y), stroke: `var(--series-${index + 1})` })),
    );
    const texts = this.#names.map((name, index) => `${name} ${format(this.last(index))}${this.#unit}`);
    this.#keys.forEach((key, index) => (key.textContent = texts[index]));
    this.#svg.setAttribute("aria-label", `${this.#title}: ${texts.join(", ")}`);
  }
}

function path(points, y) {
  let text = "";
  let isDown = false;
  points.forEach((value, index) => {
    if (value === undefined) isDown = false;
    else {
      const x = LEFT + ((KEEP - points.length + index) / (KEEP - 1)) * (WIDTH - LEFT);
      text += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y(value).toFixed(1)}`;
      isDown = true;
    }
  });
  return text;
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
