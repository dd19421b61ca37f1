// The chat page and the dashboard in a real Chromium, against a real `roci serve` with a real model.
//
//   node page.test.mjs ROCI MODEL [--screenshots DIR]
//
// ROCI is the binary, MODEL what `roci serve` takes. CHROMIUM names the browser (default /usr/bin/chromium). Each test
// is a function below; the first that fails is named and the exit status is 1.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [roci, model, option, shots] = process.argv.slice(2);
if (!roci || !model || (option && option !== "--screenshots")) {
  console.error("usage: node page.test.mjs ROCI MODEL [--screenshots DIR]");
  process.exit(2);
}
if (shots) mkdirSync(shots, { recursive: true });
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

class Server {
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

const port = await freePort();
let server = await Server.start(port);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

/** A page of its own profile; a script error or a refused load in it fails the test. */
async function newPage(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(`script error: ${error.message}`));
  page.on("console", (message) => {
    if (/Content Security Policy|Refused to/.test(message.text())) page.problems.push(message.text());
  });
  page.on("request", (request) => {
    if (!/^(http:\/\/127\.0\.0\.1:|blob:|data:)/.test(request.url())) page.problems.push(`asked outside: ${request.url()}`);
  });
  page.setDefaultTimeout(60_000);
  return page;
}

const box = (page) => page.getByLabel("Message", { exact: true });
const answers = (page) => page.locator(".message.assistant .body");

async function openChat(options) {
  const page = await newPage(options);
  await page.goto(server.address);
  await page.locator("#model option").first().waitFor({ state: "attached" });
  return page;
}

/** Keeps answers short and the same each time. */
async function limit(page, tokens, more = {}) {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Longest answer (tokens)").fill(String(tokens));
  await page.getByLabel("Temperature").fill("0");
  for (const [label, value] of Object.entries(more)) await page.getByLabel(label).fill(value);
  await page.getByRole("button", { name: "Save" }).click();
}

async function say(page, text) {
  const before = await answers(page).count();
  await box(page).fill(text);
  await box(page).press("Enter");
  await page.waitForFunction((n) => document.querySelectorAll(".message.assistant .body").length > n, before);
}

async function finished(page) {
  await page.getByRole("button", { name: /^(Regenerate|Try again)$/ }).waitFor();
  return (await answers(page).last().textContent()).trim();
}

async function shot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` });
}

async function readable(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  assert.deepEqual(violations.map((v) => `${v.id}: ${v.help} (${v.nodes.map((n) => n.target).join(", ")})`), []);
}

const tests = {
  async "a whole conversation, kept over a reload"() {
    const page = await openChat();
    await shot(page, "chat-empty");
    await limit(page, 40);
    await say(page, "Why is the sky blue?");
    const first = await finished(page);
    assert.ok(first.length > 20, `an answer: ${first}`);
    assert.match(await page.locator("#speed").textContent(), /\d+ tokens · [\d.]+ tokens\/s · first after [\d.]+ s/);
    assert.match(await page.locator("#context-text").textContent(), /^\d+ of \d+ context tokens$/);
    const used = Number.parseInt(await page.locator("#context-text").textContent(), 10);
    await say(page, "Say that in one short sentence.");
    await finished(page);
    assert.ok(Number.parseInt(await page.locator("#context-text").textContent(), 10) > used, "the context grows");
    await shot(page, "chat");
    const texts = await answers(page).allTextContents();
    await page.reload();
    await finished(page);
    assert.deepEqual(await answers(page).allTextContents(), texts);
    assert.equal(await page.locator("#conversations li").count(), 1);
    return page;
  },

  async "stop keeps what was written, and the next question works"() {
    const page = await openChat();
    await limit(page, 2000);
    await say(page, "Write a very long story about a ship.");
    await page.waitForFunction(() => document.querySelector(".message.assistant .body").textContent.length > 40);
    await page.getByRole("button", { name: "Stop" }).click();
    const text = await finished(page);
    assert.ok(text.length > 40);
    await page.getByText("Stopped.", { exact: false }).first().waitFor();
    // The server forgets the request at once.
    await page.waitForFunction(async () => /^roci_requests_running(\{.*\})? 0$/m.test(await (await fetch("metrics")).text()), null, { polling: 200 });
    await limit(page, 8);
    await say(page, "Hello");
    await finished(page);
    await limit(page, 2000);
    await say(page, "Another long story, please.");
    await page.keyboard.press("Escape");
    await finished(page);
    return page;
  },

  async "regenerate and edit"() {
    const page = await openChat();
    await limit(page, 12);
    await say(page, "What is the capital of France?");
    const first = await finished(page);
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.waitForFunction(() => !document.querySelector("#stop").hidden);
    assert.equal(await finished(page), first, "greedy answers repeat");
    await page.getByRole("button", { name: "Edit" }).click();
    const editor = page.getByLabel("Edit your message");
    await editor.fill("What is the capital of Italy?");
    await editor.press("Enter");
    await page.waitForFunction(() => !document.querySelector("#stop").hidden);
    assert.notEqual(await finished(page), first);
    assert.equal(await page.locator(".message.user .body").count(), 1);
    assert.equal(await page.locator("#conversations .open").textContent(), "What is the capital of Italy?");
    return page;
  },

  async "system prompt and sampling reach the server"() {
    const page = await openChat();
    await limit(page, 3, { "System prompt": "You answer in French.", Seed: "7", "Top-k": "5" });
    const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), say(page, "Hello")]);
    const body = request.postDataJSON();
    assert.deepEqual(body.messages[0], { role: "system", content: "You answer in French." });
    assert.equal(body.max_tokens, 3);
    assert.equal(body.temperature, 0);
    assert.equal(body.seed, 7);
    assert.equal(body.top_k, 5);
    await finished(page);
    await page.getByText("Cut at the token limit.").waitFor();
    return page;
  },

  async "a text file goes along; a picture is refused"() {
    const page = await openChat();
    await limit(page, 3);
    await page.locator("#attach-input").setInputFiles({ name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("The code word is walrus.") });
    await page.getByText("notes.txt · 24 B").waitFor();
    const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), say(page, "What is the code word?")]);
    assert.match(request.postDataJSON().messages.at(-1).content, /File notes\.txt:\n```\nThe code word is walrus\.\n```\n\nWhat is the code word\?/);
    await finished(page);
    await page.locator("#attach-input").setInputFiles({ name: "a.png", mimeType: "image/png", buffer: Buffer.from([0x89, 0x50, 0, 1, 2, 0xff]) });
    await page.getByText("a.png is not a text file.").waitFor();
    return page;
  },

  async "several files go along at once"() {
    const page = await openChat();
    await limit(page, 3);
    await page.locator("#attach-input").setInputFiles(
      ["a.py", "b.csv", "c.md"].map((name) => ({ name, mimeType: "text/plain", buffer: Buffer.from(`the text of ${name}`) })),
    );
    await page.getByText("c.md · 16 B").waitFor();
    await page.getByRole("button", { name: "Remove b.csv" }).click();
    const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), say(page, "What are these?")]);
    const said = request.postDataJSON().messages.at(-1).content;
    assert.ok(said.includes("the text of a.py") && said.includes("the text of c.md") && !said.includes("b.csv"), said);
    await finished(page);
    return page;
  },

  async "a reload in the middle of an answer keeps what was written"() {
    const page = await openChat();
    await limit(page, 2000);
    await say(page, "Write a very long story about a ship.");
    const body = () => page.evaluate(() => document.querySelector(".message.assistant .body").textContent.length);
    await page.waitForFunction(() => document.querySelector(".message.assistant .body").textContent.length > 200);
    const before = await body();
    await page.reload();
    await finished(page);
    assert.ok((await body()) >= before, `${await body()} of ${before} characters`);
    await page.getByText("Stopped.", { exact: false }).first().waitFor();
    await page.waitForFunction(async () => /^roci_requests_running(\{.*\})? 0$/m.test(await (await fetch("metrics")).text()), null, { polling: 200 });
    return page;
  },

  async "who reads above is left there, and who has a keyboard keeps it"() {
    const page = await openChat({ viewport: { width: 1200, height: 360 } });
    await limit(page, 2000);
    await say(page, "Write a very long story about a ship.");
    await page.waitForFunction(() => document.querySelector("#log").scrollHeight > document.querySelector("#log").clientHeight + 200);
    await page.locator("#log").evaluate((log) => (log.scrollTop = 0));
    await page.keyboard.press("Escape");
    await finished(page);
    assert.equal(await page.locator("#log").evaluate((log) => log.scrollTop), 0);
    await limit(page, 5);
    await page.getByRole("button", { name: "Regenerate" }).focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.activeElement.id === "composer-text");
    await finished(page);
    assert.equal(await page.evaluate(() => document.activeElement.id), "composer-text");
    return page;
  },

  async "two tabs show the same conversations"() {
    const page = await openChat();
    await limit(page, 3);
    await say(page, "In the first tab");
    await finished(page);
    const other = await page.context().newPage();
    await other.goto(`${server.address}#${new URL(page.url()).hash.slice(1)}`);
    await other.locator("#model option").first().waitFor({ state: "attached" });
    await say(other, "In the second tab");
    await finished(other);
    await page.getByText("In the second tab").waitFor();
    await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2);
    await other.getByRole("button", { name: "New chat" }).click();
    await limit(other, 3);
    await say(other, "Another one");
    await finished(other);
    await page.getByRole("button", { name: "Another one", exact: true }).waitFor();
    await other.getByRole("button", { name: "Delete In the first tab" }).click();
    await other.locator("#confirm").getByRole("button", { name: "Delete" }).click();
    await page.getByText("What shall we talk about?").waitFor();
    return page;
  },

  async "conversations: new, switch, rename, search, delete"() {
    const page = await openChat();
    await limit(page, 2);
    await say(page, "First thing");
    await finished(page);
    await page.getByRole("button", { name: "New chat" }).click();
    await limit(page, 2);
    await say(page, "Second thing");
    await finished(page);
    assert.deepEqual(await page.locator("#conversations .open").allTextContents(), ["Second thing", "First thing"]);
    await page.getByRole("button", { name: "First thing", exact: true }).click();
    assert.equal(await page.locator(".message.user .body").textContent(), "First thing");
    await page.getByRole("button", { name: "First thing", exact: true }).press("F2");
    await page.getByLabel("Title").fill("Renamed");
    await page.getByLabel("Title").press("Enter");
    await page.getByLabel("Search conversations").fill("second");
    assert.equal(await page.locator("#conversations .open").count(), 1);
    await page.getByLabel("Search conversations").fill("");
    await page.getByRole("button", { name: "Delete Renamed" }).click();
    await page.locator("#confirm").getByRole("button", { name: "Delete" }).click();
    await page.waitForFunction(() => document.querySelectorAll("#conversations li").length === 1);
    return page;
  },

  async "what a model writes is shown, not run"() {
    const page = await openChat();
    const rendered = await page.evaluate(async () => {
      const { render } = await import(new URL("assets/markdown.js", location.href));
      const div = document.createElement("div");
      div.append(render("**b** *i* `c` <img src=x onerror=alert(1)> [x](javascript:alert(1)) [y](https://e.org)\n\n- a\n  - b\n\n```py\nx = 1 # c\n```\n\n|a|b|\n|-|-|\n|1|2|"));
      return div.innerHTML;
    });
    assert.match(rendered, /<strong>b<\/strong> <em>i<\/em> <code>c<\/code> &lt;img src=x onerror=alert\(1\)&gt; x <a href="https:\/\/e\.org"/);
    assert.match(rendered, /<ul><li>a<ul><li>b<\/li><\/ul><\/li><\/ul>/);
    assert.match(rendered, /<span class="hl-comment"># c<\/span>/);
    assert.match(rendered, /<td>1<\/td><td>2<\/td>/);
    // Any beginning of an answer renders.
    const source = "# T\n\n1. **a** `b\n\n```rust\nfn f() {\n```\n| a |\n|--|\n> [x](http://y";
    await page.evaluate(async (text) => {
      const { render } = await import(new URL("assets/markdown.js", location.href));
      for (let n = 0; n <= text.length; n += 1) render(text.slice(0, n));
    }, source);
    return page;
  },

  async "keyboard, screen reader, dark and phone"() {
    const page = await openChat();
    await readable(page);
    await page.keyboard.press("Control+/");
    await page.getByRole("heading", { name: "Keyboard" }).waitFor();
    await page.keyboard.press("Escape");
    await limit(page, 4);
    await box(page).focus();
    await page.keyboard.type("Hello there");
    await page.keyboard.press("Enter");
    await finished(page);
    await page.waitForFunction(() => document.querySelector("#announce").textContent !== "");
    await readable(page);
    await page.keyboard.press("ArrowUp");
    await page.getByLabel("Edit your message").waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: /Colour theme/ }).click();
    await page.getByRole("button", { name: /Colour theme: light/ }).click();
    await page.getByRole("button", { name: /Colour theme: dark/ }).waitFor();
    await readable(page);
    await shot(page, "chat-dark");
    await page.setViewportSize({ width: 390, height: 780 });
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "no sideways scrolling");
    await readable(page);
    await page.getByRole("button", { name: "Conversations" }).click();
    await page.getByRole("button", { name: "Hello there", exact: true }).click();
    await shot(page, "chat-phone");
    return page;
  },

  async "a server that goes away is said, and comes back"() {
    const page = await openChat();
    await limit(page, 5);
    await server.stop();
    await say(page, "Are you there?");
    await page.locator(".failed", { hasText: "The server does not answer. Is it still running?" }).waitFor();
    await shot(page, "chat-error");
    server = await Server.start(port);
    // The list of models may have been on its way, too: then a button of the same name stands above the messages.
    await page.locator(".message .tools").getByRole("button", { name: "Try again" }).click();
    await page.waitForFunction(() => !document.querySelector(".failed"));
    await finished(page);
    // Killed in the middle of an answer: what came stays, and the break is said.
    await limit(page, 2000);
    await say(page, "Write a very long story.");
    await page.waitForFunction(() => [...document.querySelectorAll(".message.assistant .body")].at(-1).textContent.length > 30);
    await server.stop();
    await page.locator(".failed").waitFor();
    assert.ok((await finished(page)).length > 30);
    server = await Server.start(port);
    return page;
  },

  async "a page that finds no server looks again by itself"() {
    const page = await newPage();
    let isAway = true;
    await page.route("**/v1/models", (route) => (isAway ? route.abort() : route.continue()));
    await page.goto(server.address);
    await page.getByText("The server does not answer.", { exact: false }).waitFor();
    isAway = false;
    await page.locator("#model option").first().waitFor({ state: "attached" });
    await page.waitForFunction(() => document.querySelector("#banner").hidden);
    return page;
  },

  async "a key is asked for, and works"() {
    const folder = mkdtempSync(join(tmpdir(), "roci-page-"));
    const file = join(folder, "keys.txt");
    const key = execFileSync(roci, ["key", "new", "--name", "test", "--file", file], { encoding: "utf8" }).trim();
    const other = await Server.start(await freePort(), "--api-key-file", file);
    try {
      const page = await newPage();
      await page.goto(other.address);
      await page.getByText("This server asks for an API key.").waitFor();
      await page.getByRole("button", { name: "Enter the key" }).click();
      await page.getByLabel("API key").fill(key);
      await page.getByRole("button", { name: "Save" }).click();
      await page.locator("#model option").first().waitFor({ state: "attached" });
      await limit(page, 3);
      await say(page, "Hello");
      await finished(page);
      return page;
    } finally {
      await other.stop();
      rmSync(folder, { recursive: true });
    }
  },

  async "the dashboard plots the metrics"() {
    const page = await newPage();
    await page.goto(`${server.address}dashboard`);
    const ask = page.evaluate(async () => {
      for (let i = 0; i < 4; i += 1) {
        await fetch("v1/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model: "any", prompt: "Once upon a time", max_tokens: 60 }) });
      }
    });
    await page.waitForFunction(() => Number(document.querySelector(".tile .value").textContent) > 0);
    await ask;
    await page.waitForFunction(() => [...document.querySelectorAll(".chart path")].filter((p) => p.getAttribute("d")?.includes("L")).length >= 3);
    const keys = await page.locator(".chart .key").allTextContents();
    assert.ok(keys.some((k) => /process [\d,]+ MB/.test(k)), keys.join("; "));
    await readable(page);
    await shot(page, "dashboard");
    return page;
  },
};

let failed = 0;
for (const [name, run] of Object.entries(tests)) {
  const started = Date.now();
  try {
    const page = await run();
    assert.deepEqual(page.problems, []);
    await page.context().close();
    console.log(`ok      ${name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}\n${server.said.slice(-2000)}`);
    for (const context of browser.contexts()) await context.close();
  }
}
await browser.close();
await server.stop();
console.log(`${Object.keys(tests).length - failed} of ${Object.keys(tests).length} tests passed`);
process.exit(failed ? 1 : 0);
