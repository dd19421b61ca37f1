// How the pages look and sound: dark and light, phones, keyboards, screen readers, and the dashboard.
import assert from "node:assert/strict";
import {
  answerWith,
  box,
  finished,
  isWithinScreen,
  limit,
  main,
  more,
  newPage,
  openChat,
  readable,
  say,
  shot,
} from "./harness.mjs";

export default {
  async "keyboard and screen reader"() {
    const page = await openChat();
    await readable(page);
    await page.locator("#log").focus();
    await page.keyboard.press("?");
    await page.getByRole("heading", { name: "Keyboard" }).waitFor();
    await readable(page);
    await page.keyboard.press("Escape");
    // In the message box it is a question mark.
    await box(page).focus();
    await page.keyboard.press("?");
    assert.equal(await box(page).inputValue(), "?");
    await box(page).fill("");
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
    await page.getByRole("button", { name: "More for Hello there" }).focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Save as Markdown");
    await readable(page);
    await page.keyboard.press("Escape");
    for (const dialog of ["Settings", "Download a model"]) {
      await page.getByRole("button", { name: dialog, exact: true }).click();
      await readable(page);
      await page.keyboard.press("Escape");
    }
    return page;
  },

  async "the sidebar folds, and stays folded"() {
    const page = await openChat();
    await page.getByRole("button", { name: "Conversations" }).click();
    assert.ok(await page.locator("#sidebar").isHidden());
    await page.reload();
    assert.ok(await page.locator("#sidebar").isHidden());
    assert.equal(await page.getByRole("button", { name: "Conversations" }).getAttribute("aria-expanded"), "false");
    await page.keyboard.press("Alt+s");
    assert.ok(await page.locator("#sidebar").isVisible());
    return page;
  },

  async "dark and light, by the system and by choice"() {
    const page = await openChat({ colorScheme: "dark" });
    await answerWith(
      page,
      "A haiku:\n\n> The sea, and again\n> the sea\n\n```py\nprint('sea')  # twice\n```\n\nwith \\(\\omega^2 = gk\\).",
    );
    const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await back();
    await say(page, "Write a haiku about the sea");
    await finished(page);
    await page.waitForFunction(() => document.querySelector(".math .katex"));
    await readable(page);
    await page.getByRole("button", { name: /Colour theme: as the system/ }).click();
    await page.getByRole("button", { name: /Colour theme: light/ }).waitFor();
    assert.notEqual(await back(), dark);
    await readable(page);
    await page.getByRole("button", { name: /Colour theme: light/ }).click();
    assert.equal(await back(), dark);
    await shot(page, "chat-dark");
    return page;
  },

  async "a phone: everything fits, renames and deletes by touch"() {
    const page = await openChat({ viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true });
    await answerWith(
      page,
      "On a phone: \\(a^2 + b^2 = c^2\\).\n\n| a long heading of a table | another long heading | and one more |\n|---|---|---|\n| 1 | 2 | 3 |",
      "Another version.",
    );
    await isWithinScreen(page);
    await say(page, "How does it look?");
    await finished(page);
    await page.getByRole("button", { name: "Regenerate" }).tap();
    await page.locator("#log").getByText("Another version.").waitFor();
    await finished(page);
    await page.getByRole("button", { name: "Previous version" }).tap();
    await page.waitForFunction(() => document.querySelector(".math .katex"));
    await isWithinScreen(page);
    await readable(page);
    await shot(page, "chat-phone");
    await page.getByRole("button", { name: "Conversations" }).tap();
    await page.getByRole("button", { name: "More for How does it look?" }).tap();
    await isWithinScreen(page);
    await page.getByRole("menuitem", { name: "Rename" }).tap();
    await page.getByLabel("Title").fill("On a phone");
    await page.getByLabel("Title").press("Enter");
    await page.getByRole("button", { name: "On a phone", exact: true }).waitFor();
    await readable(page);
    await page.getByRole("button", { name: "On a phone", exact: true }).tap();
    assert.ok(!(await page.locator("#sidebar").evaluate((bar) => bar.classList.contains("open"))));
    await page.getByRole("button", { name: "Settings" }).tap();
    await isWithinScreen(page);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Conversations" }).tap();
    await more(page, "On a phone", "Delete");
    await page.locator("#confirm").getByRole("button", { name: "Delete" }).tap();
    await page.getByText("What shall we talk about?").waitFor();
    return page;
  },

  async "the dashboard plots the metrics"() {
    const page = await newPage();
    await page.goto(`${main.server.address}dashboard`);
    // The charts show what happened between two looks at the metrics, so requests go on until they have shown it.
    const ask = page.evaluate(async () => {
      while (!window.isPlotted) {
        await fetch("v1/completions", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ model: "any", prompt: "Once upon a time", max_tokens: 60 }),
        });
      }
    });
    await page.waitForFunction(() => Number(document.querySelector(".tile .value").textContent) > 0);
    await page.waitForFunction(
      () => [...document.querySelectorAll(".chart path")].filter((p) => p.getAttribute("d")?.includes("L")).length >= 3,
    );
    await page.waitForFunction(() => {
      const keys = [...document.querySelectorAll(".chart .key")].map((key) => key.textContent);
      return [/process [\d.,]+ MB/, /^99 % [\d.]+ s$/].every((shown) => keys.some((key) => shown.test(key)));
    });
    await page.evaluate(() => {
      window.isPlotted = true;
    });
    await ask;
    const row = await page.locator("#models tbody tr").first().locator("td").allTextContents();
    assert.equal(row[0], "smollm2");
    assert.match(row[4], /of [\d.]+ [MG]B/);
    assert.match(row[7], /^[\d.]+ \/ [\d.]+ \/ [\d.]+$/);
    await readable(page);
    await shot(page, "dashboard");
    await page.setViewportSize({ width: 390, height: 780 });
    await isWithinScreen(page);
    await readable(page);
    return page;
  },
};
