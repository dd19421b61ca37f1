// Brings KaTeX and pdf.js into crates/server/src/web/vendor, from npm, at the versions named here. Run it to upgrade:
//
//   node vendor.mjs
//
// Scripts and sheets are stored as gzip, as they are served; nothing else about them is changed. The versions are part
// of the files' addresses (crates/server/src/web/vendor.rs), so browsers may keep them for ever.
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const VERSIONS = { katex: "0.19.1", "pdfjs-dist": "5.6.205" };
const target = join(dirname(fileURLToPath(import.meta.url)), "../../crates/server/src/web/vendor");
const scratch = mkdtempSync(join(tmpdir(), "roci-vendor-"));
const names = Object.entries(VERSIONS).map(([name, version]) => `${name}@${version}`);
execFileSync("npm", ["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", scratch, ...names], {
  stdio: "inherit",
});
const from = (...parts) => join(scratch, "node_modules", ...parts);

function pack(source, ...parts) {
  writeFileSync(`${join(target, ...parts)}.gz`, gzipSync(readFileSync(source), { level: 9 }));
}

/** All CMaps in one file: a line of JSON with the place of each, then their bytes. crates/server/src/web/pdf.js reads it. */
function packMaps(folder, name) {
  const places = {};
  const parts = [];
  let at = 0;
  for (const file of readdirSync(folder).filter((file) => file.endsWith(".bcmap")).sort()) {
    const bytes = readFileSync(join(folder, file));
    places[file.replace(".bcmap", "")] = [at, bytes.length];
    parts.push(bytes);
    at += bytes.length;
  }
  const whole = Buffer.concat([Buffer.from(`${JSON.stringify(places)}\n`), ...parts]);
  writeFileSync(`${join(target, name)}.gz`, gzipSync(whole, { level: 9 }));
}

mkdirSync(join(target, "katex/fonts"), { recursive: true });
mkdirSync(join(target, "pdfjs"), { recursive: true });
pack(from("katex/dist/katex.min.js"), "katex/katex.min.js");
pack(from("katex/dist/katex.min.css"), "katex/katex.min.css");
for (const font of readdirSync(from("katex/dist/fonts")).filter((name) => name.endsWith(".woff2"))) {
  copyFileSync(from("katex/dist/fonts", font), join(target, "katex/fonts", font));
}
copyFileSync(from("katex/LICENSE"), join(target, "katex/LICENSE"));
// The legacy build: the other one needs a browser of the last few months.
pack(from("pdfjs-dist/legacy/build/pdf.min.mjs"), "pdfjs/pdf.min.mjs");
pack(from("pdfjs-dist/legacy/build/pdf.worker.min.mjs"), "pdfjs/pdf.worker.min.mjs");
copyFileSync(from("pdfjs-dist/LICENSE"), join(target, "pdfjs/LICENSE"));
packMaps(from("pdfjs-dist/cmaps"), "pdfjs/cmaps.bin");
copyFileSync(from("pdfjs-dist/cmaps/LICENSE"), join(target, "pdfjs/LICENSE.cmaps"));
rmSync(scratch, { recursive: true });
