// Conversations as a person has them: asking, stopping, going back, keeping, finding.
import assert from "node:assert/strict";
import { answerWith, answers, confirmDelete, finished, limit, main, more, openChat, say, shot } from "./harness.mjs";

const isIdle = async () => /^roci_requests_running(\{.*\})? 0$/m.test(await (await fetch("metrics")).text());
const lastLength = (n) => [...document.querySelectorAll(".message.assistant .body")].at(-1).textContent.length > n;
const isRunning = () => !document.querySelector("#stop").hidden;

export default {
  async "a whole conversation, kept over a reload"() {
    const page = await openChat();
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
    // Each answer says who wrote it.
    assert.match(await page.locator(".message.assistant .note").first().textContent(), /smollm2 · 40 tokens/);
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
    await page.waitForFunction(lastLength, 40);
    await page.getByRole("button", { name: "Stop" }).click();
    const text = await finished(page);
    assert.ok(text.length > 40);
    await page.getByText("Stopped.", { exact: false }).first().waitFor();
    // The server forgets the request at once.
    await page.waitForFunction(isIdle, null, { polling: 200 });
    await limit(page, 2000);
    await say(page, "Another long story, please.");
    await page.keyboard.press("Escape");
    await finished(page);
    return page;
  },

  async "an answer made again stands beside the old one"() {
    const page = await openChat();
    await answerWith(page, "The first answer.", "The second answer.", "To another question.");
    await say(page, "What is the capital of France?");
    await finished(page);
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.locator("#log").getByText("The second answer.").waitFor();
    await finished(page);
    await page.getByLabel("Version 2 of 2").waitFor();
    await page.getByRole("button", { name: "Previous version" }).click();
    await page.locator("#log").getByText("The first answer.").waitFor();
    assert.equal(await answers(page).count(), 1);
    // The same for a message that is edited: its old text and the answers to it stay.
    await page.getByRole("button", { name: "Edit" }).click();
    const editor = page.getByLabel("Edit your message");
    await editor.fill("What is the capital of Italy?");
    await editor.press("Enter");
    await page.locator("#log").getByText("To another question.").waitFor();
    await finished(page);
    assert.deepEqual(await page.locator(".message.user .body").allTextContents(), ["What is the capital of Italy?"]);
    assert.equal(await page.locator("#conversations .open").textContent(), "What is the capital of Italy?");
    await page.reload();
    await page.locator(".message.user").getByRole("button", { name: "Previous version" }).click();
    assert.deepEqual(await page.locator(".message.user .body").allTextContents(), ["What is the capital of France?"]);
    await page.getByLabel("Version 2 of 2").waitFor();
    await page.locator(".message.assistant").getByRole("button", { name: "Previous version" }).click();
    await page.locator("#log").getByText("The first answer.").waitFor();
    return page;
  },

  async "an answer is bounded, and can be continued"() {
    const page = await openChat();
    const bodies = [];
    page.on("request", (request) => request.url().endsWith("/v1/chat/completions") && bodies.push(request.postDataJSON()));
    await answerWith(page, "Short.");
    await say(page, "Without a limit");
    await finished(page);
    assert.equal(bodies[0].max_tokens, 4096);
    await page.unroute("**/v1/chat/completions");
    await page.getByRole("button", { name: "New chat" }).click();
    await limit(page, 6);
    await say(page, "Count from one to twenty.");
    const part = await finished(page);
    await page.getByText("Cut at the token limit.").waitFor();
    await page.getByRole("button", { name: "Continue" }).click();
    await page.waitForFunction(
      (text) => document.querySelector(".message.assistant .body").textContent.trim().length > text.length,
      part,
    );
    const whole = await finished(page);
    assert.ok(whole.startsWith(part), `${whole} goes on from ${part}`);
    assert.equal(bodies.at(-1).continue_final_message, true);
    assert.equal(bodies.at(-1).messages.at(-1).content.trim(), part);
    assert.equal(await answers(page).count(), 1);
    return page;
  },

  async "a message is deleted, with what followed it"() {
    const page = await openChat();
    await answerWith(page, "One.", "Two.");
    await say(page, "First");
    await finished(page);
    await say(page, "Second");
    await finished(page);
    await page.locator(".message.user").last().getByRole("button", { name: "Delete" }).click();
    await page.getByText("Delete this message and the 1 after it?").waitFor();
    await confirmDelete(page);
    await page.waitForFunction(() => document.querySelectorAll(".message").length === 2);
    await page.reload();
    await page.locator("#log").getByText("One.").waitFor();
    assert.equal(await page.locator(".message").count(), 2);
    return page;
  },

  async "a reload in the middle of an answer keeps what was written"() {
    const page = await openChat();
    await limit(page, 2000);
    await say(page, "Write a very long story about a ship.");
    const body = () => page.evaluate(() => document.querySelector(".message.assistant .body").textContent.length);
    await page.waitForFunction(lastLength, 200);
    const before = await body();
    await page.reload();
    await finished(page);
    assert.ok((await body()) >= before, `${await body()} of ${before} characters`);
    await page.getByText("Stopped.", { exact: false }).first().waitFor();
    await page.waitForFunction(isIdle, null, { polling: 200 });
    return page;
  },

  async "who reads above is left there, and who has a keyboard keeps it"() {
    const page = await openChat({ viewport: { width: 1200, height: 360 } });
    await limit(page, 2000);
    await say(page, "Write a very long story about a ship.");
    await page.waitForFunction(
      () => document.querySelector("#log").scrollHeight > document.querySelector("#log").clientHeight + 200,
    );
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
    await other.goto(`${main.server.address}#${new URL(page.url()).hash.slice(1)}`);
    await other.locator("#model option").first().waitFor({ state: "attached" });
    await say(other, "In the second tab");
    await finished(other);
    await page.locator("#log").getByText("In the second tab").waitFor();
    await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2);
    await other.getByRole("button", { name: "New chat" }).click();
    await limit(other, 3);
    await say(other, "Another one");
    await finished(other);
    await page.getByRole("button", { name: "Another one", exact: true }).waitFor();
    await more(other, "In the first tab", "Delete");
    await confirmDelete(other);
    await page.getByText("What shall we talk about?").waitFor();
    return page;
  },

  async "conversations: new, switch, rename, find, delete"() {
    const page = await openChat();
    await answerWith(page, "It is called a walrus.", "Nothing of interest.", "A seal.");
    await say(page, "First thing");
    await finished(page);
    await page.getByRole("button", { name: "New chat" }).click();
    await say(page, "Second thing");
    await finished(page);
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.locator("#log").getByText("A seal.").waitFor();
    await finished(page);
    assert.deepEqual(await page.locator("#conversations .open").allTextContents(), ["Second thing", "First thing"]);
    await page.getByRole("button", { name: "First thing", exact: true }).click();
    assert.equal(await page.locator(".message.user .body").textContent(), "First thing");
    await page.getByRole("button", { name: "First thing", exact: true }).press("F2");
    await page.getByLabel("Title").fill("Renamed");
    await page.getByLabel("Title").press("Enter");
    // A word is found in every conversation, in versions that are not on screen, too.
    await page.keyboard.press("Control+k");
    await page.keyboard.type("INTEREST");
    assert.equal(await page.locator("#conversations mark").textContent(), "interest");
    await page.keyboard.press("Enter");
    await page.locator("#log").getByText("Nothing of interest.").waitFor();
    assert.ok(await page.locator(".message.found").isVisible());
    await page.getByLabel("Find in all conversations").fill("nowhere");
    await page.getByText("Nothing found.").waitFor();
    await page.getByLabel("Find in all conversations").fill("");
    await more(page, "Renamed", "Delete");
    await confirmDelete(page);
    await page.waitForFunction(() => document.querySelectorAll("#conversations li").length === 1);
    return page;
  },

  async "nothing above moves when a message is sent or an answer ends"() {
    const page = await openChat();
    await limit(page, 12);
    await say(page, "Hello");
    await finished(page);
    const places = () =>
      page.evaluate(() => {
        const top = document.querySelector("#log").firstElementChild.getBoundingClientRect().top;
        const box = document.querySelector("#composer").getBoundingClientRect();
        const rows = [...document.querySelectorAll(".message")]
          .slice(0, 2)
          .map((m) => [m.getBoundingClientRect().top - top, m.getBoundingClientRect().height]);
        return {
          rows,
          composer: [box.top, box.height],
          send: document.querySelector("#send:not([hidden]), #stop:not([hidden])").getBoundingClientRect().width,
        };
      });
    const before = await places();
    await page.route("**/v1/chat/completions", async (route) => {
      await new Promise((resolve) => setTimeout(resolve, 700));
      await route.continue();
    });
    await say(page, "And again");
    await page.waitForFunction(isRunning);
    assert.deepEqual(await places(), before, "while waiting");
    await page.waitForFunction(lastLength, 3);
    assert.deepEqual(await places(), before, "while the answer grows");
    await finished(page);
    assert.deepEqual(await places(), before, "when it has ended");
    return page;
  },
};
