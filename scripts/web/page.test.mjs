// The chat page and the dashboard in a real Chromium, against a real `roci serve` with a real model.
//
//   node page.test.mjs ROCI MODEL [--screenshots DIR]
//
// ROCI is the binary, MODEL what `roci serve` takes. CHROMIUM names the browser (default /usr/bin/chromium), ONLY picks
// tests by a pattern. Each test is a function in one of the files below; the exit status is 1 if one fails.
import assert from "node:assert/strict";
import { browser, main } from "./harness.mjs";
import conversations from "./conversations.mjs";
import answers from "./answers.mjs";
import failures from "./failures.mjs";
import files from "./files.mjs";
import looks from "./looks.mjs";

const only = new RegExp(process.env.ONLY ?? "");
const tests = Object.entries({ ...conversations, ...answers, ...files, ...failures, ...looks }).filter(([name]) =>
  only.test(name),
);
let failed = 0;
for (const [name, run] of tests) {
  const started = Date.now();
  try {
    const page = await run();
    assert.deepEqual(page.problems, []);
    await page.context().close();
    console.log(`ok      ${name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}\n${main.server.said.slice(-600)}`);
    for (const context of browser.contexts()) await context.close();
  }
}
await browser.close();
await main.server.stop();
console.log(`${tests.length - failed} of ${tests.length} tests passed`);
process.exit(failed ? 1 : 0);
