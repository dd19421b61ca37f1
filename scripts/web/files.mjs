// Files that go along with a message, and conversations as files.
import assert from "node:assert/strict";
import {
  answerWith,
  answers,
  confirmDelete,
  finished,
  limit,
  main,
  more,
  newPage,
  openChat,
  chinesePdf,
  pdf,
  say,
  saved,
  shot,
} from "./harness.mjs";

const attach = (page, ...files) =>
  page
    .locator("#attach-input")
    .setInputFiles(files.map(([name, buffer, mimeType = "text/plain"]) => ({ name, mimeType, buffer: Buffer.from(buffer) })));
const asked = async (page, text) => {
  const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), say(page, text)]);
  await finished(page);
  return request.postDataJSON().messages.at(-1).content;
};

/** Drops a file on the element. */
async function drop(page, selector, name, text) {
  const data = await page.evaluateHandle(
    ([name, text]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([text], name, { type: "text/plain" }));
      return transfer;
    },
    [name, text],
  );
  for (const event of ["dragenter", "dragover", "drop"]) await page.dispatchEvent(selector, event, { dataTransfer: data });
}

export default {
  async "text files go along; a picture is refused"() {
    const page = await openChat();
    await answerWith(page, "Yes.");
    await attach(page, ["notes.txt", "The code word is walrus."]);
    await page.getByText("notes.txt · 24 B").waitFor();
    assert.match(
      await asked(page, "What is the code word?"),
      /^File notes\.txt:\n```\nThe code word is walrus\.\n```\n\nWhat is the code word\?$/,
    );
    await attach(page, ["a.png", [0x89, 0x50, 0, 1, 2, 0xff], "image/png"]);
    await page.getByText("a.png is not a text file.").waitFor();
    // Several at once, in other encodings, one of them taken back.
    await attach(
      page,
      ["a.py", "the text of a.py"],
      ["b.csv", "the text of b.csv"],
      ["latin.txt", [0x63, 0x61, 0x66, 0xe9]],
      ["wide.txt", [0xff, 0xfe, 0x4f, 0, 0x4b, 0]],
    );
    await page.getByText("wide.txt").waitFor();
    await page.getByRole("button", { name: "Remove b.csv" }).click();
    const said = await asked(page, "What are these?");
    for (const part of ["the text of a.py", "café", "OK"]) assert.ok(said.includes(part), `${part} in ${said}`);
    assert.ok(!said.includes("b.csv"));
    return page;
  },

  async "the text of a PDF is read in the browser"() {
    const page = await openChat();
    await answerWith(page, "Yes.");
    await attach(page, ["paper.pdf", pdf("The code word is walrus.", "Page two."), "application/pdf"]);
    await page.getByText("paper.pdf · 35 B").waitFor();
    assert.match(await asked(page, "What is it?"), /File paper\.pdf:\n```\nThe code word is walrus\.\n\nPage two\.\n```/);
    await attach(page, ["chinese.pdf", chinesePdf("你好世界"), "application/pdf"]);
    await page.getByText("chinese.pdf ·").waitFor();
    assert.match(await asked(page, "And this?"), /File chinese\.pdf:\n```\n你好世界\n```/);
    await attach(page, ["broken.pdf", "no PDF at all", "application/pdf"]);
    await page.getByText("broken.pdf could not be read: it is damaged or not a PDF file").waitFor();
    return page;
  },

  async "a file dropped anywhere is attached, and the page stays"() {
    const page = await openChat();
    for (const [index, place] of ["#log", "#sidebar", ".bar", "#composer"].entries()) {
      await drop(page, place, `dropped${index}.txt`, "walrus");
      await page.getByText(`dropped${index}.txt · 6 B`).waitFor();
    }
    assert.equal(new URL(page.url()).pathname, "/");
    assert.equal(await page.evaluate(() => document.body.classList.contains("drop")), false);
    return page;
  },

  async "export, delete, import: everything is back"() {
    const page = await openChat();
    await answerWith(page, "A **bold** first.", "A second version.");
    await say(page, "Keep me");
    await finished(page);
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.locator("#log").getByText("A second version.").waitFor();
    await finished(page);
    const file = await saved(page, () => page.getByRole("button", { name: "Export" }).click());
    assert.equal(file.name, "rocinante-conversations.json");
    const markdown = await saved(page, () => more(page, "Keep me", "Save as Markdown"));
    assert.equal(markdown.name, "Keep-me.md");
    assert.equal(markdown.text, "# Keep me\n\n## You\n\nKeep me\n\n## smollm2\n\nA second version.\n");
    await more(page, "Keep me", "Delete");
    await confirmDelete(page);
    await page.getByText("What shall we talk about?").waitFor();
    await page
      .locator("#import-input")
      .setInputFiles({ name: "all.json", mimeType: "application/json", buffer: Buffer.from(file.text) });
    await page.locator("#log").getByText("A second version.").waitFor();
    await page.getByRole("button", { name: "Previous version" }).click();
    await page.locator("#log").getByText("A bold first.").waitFor();
    // Twice changes nothing; a list of messages as programs have it is a conversation, too.
    await page
      .locator("#import-input")
      .setInputFiles({ name: "all.json", mimeType: "application/json", buffer: Buffer.from(file.text) });
    const plain = JSON.stringify([
      { role: "system", content: "Be brief." },
      { role: "user", content: "From elsewhere" },
      { role: "assistant", content: "Indeed." },
    ]);
    await page
      .locator("#import-input")
      .setInputFiles({ name: "plain.json", mimeType: "application/json", buffer: Buffer.from(plain) });
    await page.locator("#log").getByText("Indeed.").waitFor();
    for (const wrong of ["{", "[1]", '{"conversations":[{"nodes":[{"role":"user","content":"x","id":"a","parent":"b"}]}]}']) {
      await page
        .locator("#import-input")
        .setInputFiles({ name: "wrong.json", mimeType: "application/json", buffer: Buffer.from(wrong) });
      await page
        .getByRole("alert")
        .filter({ hasText: /This file|in this file/ })
        .waitFor();
    }
    await page.reload();
    await page.locator("#log").getByText("Indeed.").waitFor();
    assert.deepEqual((await page.locator("#conversations .open").allTextContents()).sort(), ["From elsewhere", "Keep me"]);
    return page;
  },

  async "a conversation is shared as a page that needs nothing else"() {
    const page = await openChat();
    await answerWith(page, "Let \\(x = 1\\).\n\n```py\nprint(1)\n```\n\n<script>alert(1)</script>");
    await say(page, "</title><script>alert(2)</script>");
    await finished(page);
    const file = await saved(page, () => more(page, "</title><script>alert(2)</script>", "Share as a page"));
    assert.match(file.name, /\.html$/);
    assert.ok(!/<script/i.test(file.text) && !/(src|href)=/.test(file.text), file.text);
    const reader = await newPage();
    reader.on("dialog", (dialog) => page.problems.push(`a dialog: ${dialog.message()}`));
    await reader.setContent(file.text);
    assert.equal(await reader.locator("math").count(), 1);
    assert.equal(await reader.locator("pre").textContent(), "print(1)");
    assert.equal(await reader.locator("article").count(), 2);
    assert.equal(await reader.locator("h1").textContent(), "</title><script>alert(2)</script>");
    await reader.context().close();
    return page;
  },

  async "conversations of older versions of the page are taken up"() {
    const page = await newPage();
    await page.goto(`${main.server.address}dashboard`);
    await page.evaluate(
      () =>
        new Promise((resolve, reject) => {
          const asked = indexedDB.open("rocinante", 1);
          asked.onupgradeneeded = () => asked.result.createObjectStore("conversations", { keyPath: "id" });
          asked.onerror = reject;
          asked.onsuccess = () => {
            const put = asked.result.transaction("conversations", "readwrite");
            put.objectStore("conversations").put({
              id: "0123456789abcdef",
              title: "Old",
              updated: 1,
              settings: {},
              messages: [
                { role: "user", content: "Then" },
                { role: "assistant", content: "There was one branch.", isRunning: true },
              ],
            });
            put.oncomplete = () => {
              asked.result.close();
              resolve();
            };
          };
        }),
    );
    await page.goto(`${main.server.address}#0123456789abcdef`);
    await page.locator("#log").getByText("There was one branch.").waitFor();
    assert.equal(await answers(page).count(), 1);
    return page;
  },

  async "a model is downloaded from the page, with progress"() {
    const page = await openChat();
    // The real server first: it knows no such model, and says so.
    await page.getByRole("button", { name: "Download a model" }).click();
    await page.getByLabel("Name", { exact: true }).fill("nosuch-model");
    await page.getByLabel("Name", { exact: true }).press("Enter");
    await page.locator("#download-state.failed", { hasText: "unknown model `nosuch-model`" }).waitFor();
    await page.getByRole("button", { name: "Close" }).click();
    const lines = (...reports) => reports.map((report) => `${JSON.stringify(report)}\n`).join("");
    const reply = (status, contentType, body) =>
      page.route("**/api/pull", (route) => route.fulfill({ status, contentType, body }));
    await reply(404, "application/json", '{"error":"not found"}');
    await page.getByRole("button", { name: "Download a model" }).click();
    await page.getByLabel("Name", { exact: true }).fill("qwen3:8b");
    await page.getByLabel("Name", { exact: true }).press("Enter");
    await page.getByText("On its machine, run: roci pull qwen3:8b").waitFor();
    await page.unroute("**/api/pull");
    let release;
    const held = new Promise((resolve) => (release = resolve));
    await page.route("**/api/pull", async (route) => {
      assert.deepEqual(route.request().postDataJSON(), { model: "qwen3:8b", stream: true });
      await held;
      await route.fulfill({
        contentType: "application/x-ndjson",
        body:
          lines(
            { status: "pulling manifest" },
            { status: "pulling 1a2b", digest: "sha256:1a2b", total: 4 << 20, completed: 1 << 20 },
          ) + '{"error":"the disk is full"}\n',
      });
    });
    await page.getByRole("button", { name: "Download", exact: true }).click();
    await page.getByText("Asking for qwen3:8b").waitFor();
    await shot(page, "chat-download");
    release();
    await page.getByText("the disk is full").waitFor();
    await page.unroute("**/api/pull");
    await reply(
      200,
      "application/x-ndjson",
      lines({ status: "pulling 1a2b", digest: "sha256:1a2b", total: 4 << 20, completed: 4 << 20 }, { status: "success" }),
    );
    const [again] = await Promise.all([
      page.waitForRequest("**/v1/models"),
      page.getByRole("button", { name: "Download", exact: true }).click(),
    ]);
    assert.ok(again);
    await page.getByText("qwen3:8b is ready.").waitFor();
    assert.equal(await page.locator("#download-bar").evaluate((bar) => bar.value), 1);
    return page;
  },
};
