// What the tests of the pages share: a `roci serve` with a real model, a Chromium, and the few things every test does.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { chromium } from "playwright-core";

const [roci, model, option, shots] = process.argv.slice(2);
if (!roci || !model || (option && option !== "--screenshots")) {
  console.error("usage: node page.test.mjs ROCI MODEL [--screenshots DIR]");
  process.exit(2);
}
if (shots) mkdirSync(shots, { recursive: true });
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export { roci };
export const modelName = model.split("=")[0];

export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

export class Server {
  static async start(port, ...more) {
    const child = spawn(roci, ["serve", model, "--port", String(port), ...more], { stdio: ["ignore", "pipe", "pipe"] });
    const server = new Server(child, `http://127.0.0.1:${port}/`);
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (server.said += data));
    const until = Date.now() + 120_000;
    for (;;) {
      if (child.exitCode !== null) throw new Error(`the server ended: ${server.said}`);
      if (Date.now() > until) throw new Error(`the server did not get ready: ${server.said}`);
      try {
        if ((await fetch(`${server.address}ready`)).ok) return server;
      } catch {
        // Not listening yet.
      }
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  constructor(child, address) {
    Object.assign(this, { child, address, said: "" });
  }
  async stop() {
    if (this.child.exitCode !== null) return;
    this.child.kill("SIGKILL");
    await once(this.child, "exit");
  }
}

/** The server that most tests use; some stop it and start it again on its port. */
export const main = {
  port: await freePort(),
  server: undefined,
  async start() {
    this.server = await Server.start(this.port);
  },
};
await main.start();
export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});

/** A page of its own profile; a script error or a refused load in it fails the test. */
export async function newPage(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, reducedMotion: "reduce", ...options });
  if (files) await context.route(/\/(dashboard|assets\/[a-z]+\.(js|css))?(#.*)?$/, fromFolder);
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(`script error: ${error.message}`));
  page.on("console", (message) => {
    if (/Content Security Policy|Refused to/.test(message.text())) page.problems.push(message.text());
  });
  page.on("request", (request) => {
    if (!/^(http:\/\/127\.0\.0\.1:|blob:|data:)/.test(request.url())) page.problems.push(`asked outside: ${request.url()}`);
  });
  page.setDefaultTimeout(30_000);
  return page;
}

/** With PAGE_FILES naming crates/server/src/web, our own files come from there and not from the binary. */
const files = process.env.PAGE_FILES;
async function fromFolder(route) {
  const path = new URL(route.request().url()).pathname.slice(1);
  const name = path === "" ? "index.html" : path === "dashboard" ? "dashboard.html" : path.replace("assets/", "");
  const response = await route.fetch();
  const contentType = { html: "text/html; charset=utf-8", css: "text/css; charset=utf-8", js: "text/javascript; charset=utf-8" }[
    name.split(".").pop()
  ];
  await route.fulfill({
    status: 200,
    headers: { "content-security-policy": response.headers()["content-security-policy"] ?? "" },
    contentType,
    body: readFileSync(`${files}/${name}`),
  });
}

export const box = (page) => page.getByLabel("Message", { exact: true });
export const answers = (page) => page.locator(".message.assistant .body");

export async function openChat(options) {
  const page = await newPage(options);
  await page.goto(main.server.address);
  await page.locator("#model option").first().waitFor({ state: "attached" });
  return page;
}

/** Keeps answers short and the same each time. */
export async function limit(page, tokens, more = {}) {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Longest answer (tokens)").fill(String(tokens));
  await page.getByLabel("Temperature").fill("0");
  for (const [label, value] of Object.entries(more)) await page.getByLabel(label).fill(value);
  await page.getByRole("button", { name: "Save", exact: true }).click();
}

export async function say(page, text) {
  const before = await answers(page).count();
  await box(page).fill(text);
  await box(page).press("Enter");
  await page.waitForFunction((n) => document.querySelectorAll(".message.assistant .body").length > n, before);
}

export async function finished(page) {
  await page.getByRole("button", { name: /^(Regenerate|Try again)$/ }).waitFor();
  return (await answers(page).last().textContent()).trim();
}

/** From now on the server's part is played by the test: answers are these texts, one after the other. */
export async function answerWith(page, ...texts) {
  const event = (value) => `data: ${JSON.stringify(value)}\n\n`;
  await page.route("**/v1/chat/completions", async (route) => {
    const text = texts.length > 1 ? texts.shift() : texts[0];
    const pieces = text.match(/[\s\S]{1,40}/g) ?? [];
    const usage = { prompt_tokens: 10, completion_tokens: pieces.length, total_tokens: 10 + pieces.length };
    await route.fulfill({
      contentType: "text/event-stream",
      body: `${pieces.map((content) => event({ choices: [{ delta: { content } }] })).join("")}${event({ choices: [{ delta: {}, finish_reason: "stop" }] })}${event({ choices: [], usage })}data: [DONE]\n\n`,
    });
  });
}

/** The menu of a conversation in the list. */
export async function more(page, title, action) {
  await page.getByRole("button", { name: `More for ${title}` }).click();
  await page.getByRole("menuitem", { name: action }).click();
}

export async function confirmDelete(page) {
  await page.locator("#confirm").getByRole("button", { name: "Delete" }).click();
}

/** What a click makes the browser save. */
export async function saved(page, act) {
  const [download] = await Promise.all([page.waitForEvent("download"), act()]);
  return { name: download.suggestedFilename(), text: readFileSync(await download.path(), "utf8") };
}

/** A picture for the documentation, without the speed of this machine and of a binary built for tests. */
export async function shot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png`, style: "#speed, .figures { visibility: hidden }" });
}

/** No rule of axe is broken: names, contrast, roles, order of headings. */
export async function readable(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(
    violations.map((v) => `${v.id}: ${v.help} (${v.nodes.map((n) => n.target).join(", ")})`),
    [],
  );
}

export async function isWithinScreen(page) {
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no sideways scrolling");
}

const HELVETICA = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>";
/** A font that is not in the file, and whose codes only a CMap explains. */
const SONG =
  "<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UCS2-H /DescendantFonts [<< /Type /Font " +
  "/Subtype /CIDFontType0 /BaseFont /STSong-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 2 >> " +
  "/FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 6 /FontBBox [-25 -254 1000 880] " +
  "/ItalicAngle 0 /Ascent 880 /Descent -120 /CapHeight 880 /StemV 93 >> >>] >>";

/** A PDF file with one line of text on each page. */
export function pdf(...lines) {
  return pdfOf(
    HELVETICA,
    lines.map((line) => `(${line})`),
  );
}

/** The same with Chinese text. */
export function chinesePdf(...lines) {
  const hex = (line) => [...line].map((c) => c.codePointAt(0).toString(16).padStart(4, "0")).join("");
  return pdfOf(
    SONG,
    lines.map((line) => `<${hex(line)}>`),
  );
}

function pdfOf(font, strings) {
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    `<< /Type /Pages /Kids [${strings.map((_, i) => `${4 + 2 * i} 0 R`).join(" ")}] /Count ${strings.length} >>`,
    font,
  ];
  for (const [i, string] of strings.entries()) {
    const stream = `BT /F1 24 Tf 72 700 Td ${string} Tj ET`;
    objects.push(
      `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents ${5 + 2 * i} 0 R >>`,
    );
    objects.push(`<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`);
  }
  let text = "%PDF-1.4\n";
  const offsets = objects.map((object, i) => {
    const at = text.length;
    text += `${i + 1} 0 obj\n${object}\nendobj\n`;
    return at;
  });
  const start = text.length;
  text += `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${offsets.map((at) => `${String(at).padStart(10, "0")} 00000 n \n`).join("")}`;
  return Buffer.from(`${text}trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${start}\n%%EOF\n`);
}
