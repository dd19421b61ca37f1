// What is asked of the server, what it says while it works, and how its answers look.
import assert from "node:assert/strict";
import { answerWith, answers, finished, limit, modelName, openChat, readable, say, shot } from "./harness.mjs";

const FORMULAS = String.raw`The roots of \(ax^2 + bx + c\) are

\[
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\]

and Euler's identity is $e^{i\pi} + 1 = 0$. It costs $5 or $10.

$$\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}$$`;

const HOSTILE = String.raw`<img src=x onerror=alert(1)> [x](javascript:alert(1)) ![y](data:text/html,z)
<svg onload=alert(2)> \(\href{javascript:alert(3)}{click}\) \(\htmlData{a=b}{c}\) \(\includegraphics{x}\)
\(\def\a{\a\a}\a\) \(${"\\sqrt{".repeat(300)}${"}".repeat(300)}\) \(\rule{1000000em}{1000000em}\)`;

export default {
  async "system prompt, sampling and presets reach the server"() {
    const page = await openChat();
    await page.getByRole("button", { name: "Settings" }).click();
    // The server's own defaults are shown for what they are.
    assert.equal(await page.getByLabel("Temperature").getAttribute("placeholder"), "the server's: 1");
    assert.equal(await page.getByLabel("Min-p").getAttribute("placeholder"), "the server's: 0.05");
    await page.getByLabel("Sampling").selectOption("Precise: code and facts");
    assert.equal(await page.getByLabel("Temperature").inputValue(), "0.2");
    await page.getByLabel("Temperature").fill("0.3");
    assert.equal(await page.getByLabel("Sampling").inputValue(), "");
    await page.getByLabel("Name of a new preset").fill("Mine");
    await page.getByRole("button", { name: "Save as preset" }).click();
    assert.equal(await page.getByLabel("Sampling").inputValue(), "Mine");
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await page.reload();
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Sampling").selectOption("Mine");
    assert.equal(await page.getByLabel("Temperature").inputValue(), "0.3");
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await limit(page, 3, { "System prompt": "You answer in French.", Seed: "7", "Top-k": "5" });
    const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), say(page, "Hello")]);
    const body = request.postDataJSON();
    assert.deepEqual(body.messages[0], { role: "system", content: "You answer in French." });
    assert.deepEqual([body.max_tokens, body.temperature, body.top_p, body.seed, body.top_k], [3, 0, 0.9, 7, 5]);
    await finished(page);
    await page.getByText("Cut at the token limit.").waitFor();
    return page;
  },

  async "while a model loads and a prompt is read, a bar says so"() {
    const page = await openChat();
    await limit(page, 8);
    await say(page, "Hello");
    await finished(page);
    assert.notEqual(await page.locator("#speed").textContent(), "");
    let isLoaded = false;
    await page.route("**/v1/models/*", async (route) => {
      const response = await route.fetch();
      const model = await response.json();
      model.meta.is_loaded = isLoaded;
      await route.fulfill({ response, json: model });
    });
    let release;
    const held = new Promise((resolve) => (release = resolve));
    await page.route("**/v1/chat/completions", async (route) => {
      await held;
      await route.continue();
    });
    await say(page, "And again");
    await page.getByText(`Loading ${modelName} (98.4 MB)`, { exact: false }).waitFor();
    await page.getByRole("progressbar", { name: "Waiting for the answer" }).waitFor();
    // The footer has no figures of another answer.
    assert.equal(await page.locator("#speed").textContent(), "");
    assert.ok(await page.locator("#context").isHidden());
    await page.getByText(/Loading .* · \d+ s/).waitFor();
    await readable(page);
    await shot(page, "chat-loading");
    isLoaded = true;
    await page.getByText("Reading the prompt").waitFor();
    release();
    await finished(page);
    assert.equal(await page.locator(".phase").count(), 0);
    return page;
  },

  async "while a long prompt is read, a bar says how much of it"() {
    const page = await openChat();
    await limit(page, 2);
    await say(page, "walrus ".repeat(2500));
    await page.getByText(/Reading the prompt · \d+ %/).waitFor();
    const bar = page.getByRole("progressbar", { name: "Waiting for the answer" });
    assert.ok((await bar.evaluate((element) => element.position)) > 0, "the bar has a position");
    await page.getByRole("button", { name: "Stop" }).click();
    await finished(page);
    return page;
  },

  async "formulas are typeset by what the server brings"() {
    const page = await openChat();
    const fonts = [];
    page.on("response", (response) => response.url().includes("katex") && fonts.push([response.url(), response.status()]));
    await answerWith(page, FORMULAS);
    await say(page, "What are the roots of a quadratic?");
    await finished(page);
    await page.waitForFunction(() => document.querySelectorAll(".math .katex").length === 4);
    assert.equal(await page.locator(".math.display").count(), 2);
    // Screen readers get MathML.
    assert.equal(await page.locator(".math math").count(), 4);
    assert.equal(await page.locator(".math.raw").count(), 0);
    await page.evaluate(() => document.fonts.ready);
    assert.ok(
      fonts.some(([url]) => url.endsWith(".woff2")) && fonts.every(([, status]) => status === 200),
      JSON.stringify(fonts),
    );
    assert.ok((await answers(page).textContent()).includes("It costs $5 or $10."));
    await readable(page);
    await shot(page, "chat-formulas");
    return page;
  },

  async "what a model writes is shown, not run"() {
    const page = await openChat();
    await answerWith(page, HOSTILE);
    page.on("dialog", (dialog) => page.problems.push(`a dialog: ${dialog.message()}`));
    await say(page, "<img src=x onerror=alert(4)>");
    await finished(page);
    await page.waitForFunction(() => document.querySelector(".math .katex, .math.raw"));
    const found = await page.evaluate(() => {
      const body = document.querySelector(".message.assistant .body");
      return {
        elements: body.querySelectorAll("img, script, iframe, object, style, [onerror], [onload], [data-a]").length,
        links: [...body.querySelectorAll("[href]")].map((a) => a.getAttribute("href")),
        widest: Math.max(...[...body.querySelectorAll("*")].map((e) => e.getBoundingClientRect().width)),
      };
    });
    assert.equal(found.elements, 0);
    assert.deepEqual(found.links, []);
    assert.ok(found.widest < 2000, `${found.widest} px`);
    return page;
  },

  async "Markdown becomes elements, and any beginning of it renders"() {
    const page = await openChat();
    const rendered = await page.evaluate(async () => {
      const { render } = await import(new URL("assets/markdown.js", location.href));
      const div = document.createElement("div");
      div.append(
        render(
          "**b** *i* `c` <img src=x onerror=alert(1)> [x](javascript:alert(1)) [y](https://e.org)\n\n- a\n  - b\n\n```py\nx = 1 # c\n```\n\n|a|b|\n|-|-|\n|1|2|",
        ),
      );
      return div.innerHTML;
    });
    assert.match(
      rendered,
      /<strong>b<\/strong> <em>i<\/em> <code>c<\/code> &lt;img src=x onerror=alert\(1\)&gt; x <a href="https:\/\/e\.org"/,
    );
    assert.match(rendered, /<ul><li>a<ul><li>b<\/li><\/ul><\/li><\/ul>/);
    assert.match(rendered, /<span class="hl-comment"># c<\/span>/);
    assert.match(rendered, /<td>1<\/td><td>2<\/td>/);
    // What grows is the same as what is drawn at once; what did not change is not drawn again.
    const source =
      "# T\n\n1. **a** `b\n\n```rust\nfn f() {\n```\n| a |\n|--|\n> [x](http://y\n\n\\(x^2\\) and\n\n$$\ny\n$$\n\nend";
    const kept = await page.evaluate(async (text) => {
      const { Growing, render } = await import(new URL("assets/markdown.js", location.href));
      const [grown, whole] = [document.createElement("div"), document.createElement("div")];
      const growing = new Growing(grown);
      let first;
      for (let n = 0; n <= text.length; n += 1) {
        growing.set(text.slice(0, n));
        if (n === 5) first = grown.firstChild;
      }
      whole.append(render(text));
      const texts = [grown, whole].map((div) => [...div.children].map((child) => child.tagName));
      return { isKept: grown.firstChild === first, texts };
    }, source);
    assert.ok(kept.isKept);
    assert.deepEqual(kept.texts[0], kept.texts[1]);
    return page;
  },
};
