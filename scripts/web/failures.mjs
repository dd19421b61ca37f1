// Servers that are slow, dead, busy, or ask for a key.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Server, answers, finished, freePort, limit, main, newPage, openChat, roci, say, shot } from "./harness.mjs";

export default {
  async "a server that goes away is said, and comes back"() {
    const page = await openChat();
    await limit(page, 5);
    await main.server.stop();
    await say(page, "Are you there?");
    await page.locator(".failed", { hasText: "The server does not answer. Is it still running?" }).waitFor();
    await page.getByRole("alert").getByText("Trying again every few seconds.", { exact: false }).waitFor();
    await shot(page, "chat-error");
    await main.start();
    await page.locator(".message .tools").getByRole("button", { name: "Try again" }).click();
    await page.waitForFunction(() => !document.querySelector(".failed"));
    await finished(page);
    // The attempt that brought nothing is not kept as a version.
    assert.equal(await page.locator(".versions").count(), 0);
    // Killed in the middle of an answer: what came stays, and what happened is said.
    await limit(page, 2000);
    await say(page, "Write a very long story.");
    await page.waitForFunction(() => [...document.querySelectorAll(".message.assistant .body")].at(-1).textContent.length > 30);
    await main.server.stop();
    await page
      .locator(".failed", {
        hasText:
          "The connection to the server was lost in the middle of the answer. The server no longer answers: it was stopped or it crashed.",
      })
      .waitFor();
    const part = await finished(page);
    assert.ok(part.length > 30);
    assert.ok(!/network error/i.test(await page.locator("main").textContent()));
    await main.start();
    await page.waitForFunction(() => document.querySelector("#banner").hidden);
    await limit(page, 40);
    await page.getByRole("button", { name: "Continue" }).click();
    await page.waitForFunction(() => !document.querySelector(".failed"));
    const whole = await finished(page);
    assert.ok(whole.startsWith(part) && whole.length > part.length);
    return page;
  },

  async "a page that finds no server looks again by itself"() {
    const page = await newPage();
    let isAway = true;
    await page.route("**/v1/models", (route) => (isAway ? route.abort() : route.continue()));
    await page.goto(main.server.address);
    await page.getByText("The server does not answer.", { exact: false }).waitFor();
    isAway = false;
    await page.locator("#model option").first().waitFor({ state: "attached" });
    await page.waitForFunction(() => document.querySelector("#banner").hidden);
    return page;
  },

  async "a slow server: the page is there, and says what it waits for"() {
    const page = await newPage();
    for (const path of ["**/v1/models", "**/v1/models/*", "**/v1/chat/completions"]) {
      await page.route(path, async (route) => {
        await new Promise((resolve) => setTimeout(resolve, 1500));
        await route.continue().catch(() => {});
      });
    }
    await page.goto(main.server.address);
    await page.getByText("What shall we talk about?").waitFor();
    await page.locator("#model option").first().waitFor({ state: "attached" });
    await limit(page, 4);
    await page.waitForFunction(() => document.querySelector("#banner").hidden);
    await say(page, "Hello");
    await page.getByText(/Waiting for smollm2 · 1 s/).waitFor();
    // It can be stopped before anything came.
    await page.getByRole("button", { name: "Stop" }).click();
    await finished(page);
    assert.equal(await answers(page).last().textContent(), "");
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.waitForFunction(() => document.querySelector(".message.assistant .body").textContent.length > 3);
    await finished(page);
    return page;
  },

  async "a busy server is said in words"() {
    const page = await openChat();
    await page.route("**/v1/chat/completions", (route) =>
      route.fulfill({ status: 429, headers: { "Retry-After": "7" }, json: { error: { message: "queue full" } } }),
    );
    await say(page, "Hello");
    await page.locator(".failed", { hasText: "The server is busy. Try again in 7 s." }).waitFor();
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
      await page.getByRole("button", { name: "Save", exact: true }).click();
      await page.locator("#model option").first().waitFor({ state: "attached" });
      await limit(page, 3);
      await say(page, "Hello");
      await finished(page);
      // The dashboard says who used how much.
      await page.goto(`${other.address}dashboard`);
      await page.locator("#keys td.name", { hasText: "test" }).waitFor();
      return page;
    } finally {
      await other.stop();
      rmSync(folder, { recursive: true });
    }
  },
};
