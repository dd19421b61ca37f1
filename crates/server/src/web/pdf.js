// The text of a PDF file, by Mozilla's pdf.js, which this server brings along and which is loaded with the first such
// file. It runs in a worker; nothing in a file is executed, and nothing is drawn.

const FOLDER = "assets/pdfjs-5.6.205/";
const MAX_PAGES = 500;
let loading;
let characters;

/**
 * What the codes of Chinese, Japanese and Korean files that bring no table of their own mean: pdf.js' CMaps, all in one
 * file (a line of JSON with names and places, then their bytes), which is loaded when the first of them is asked for.
 */
class CharacterMaps {
  async fetch({ kind, filename }) {
    if (kind !== "cMapUrl") throw new Error(`${kind} is not here`);
    characters ??= load(`${FOLDER}cmaps.bin`);
    const { places, bytes, start } = await characters;
    const place = places[filename.replace(/\.bcmap$/, "")];
    if (!place) throw new Error(`there is no CMap ${filename}`);
    return bytes.slice(start + place[0], start + place[0] + place[1]);
  }
}

async function load(path) {
  const response = await fetch(new URL(path, document.baseURI));
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  const end = bytes.indexOf(10);
  return { places: JSON.parse(new TextDecoder().decode(bytes.subarray(0, end))), bytes, start: end + 1 };
}

function library() {
  loading ??= import(new URL(`${FOLDER}pdf.min.mjs`, document.baseURI).href).then((pdfjs) => {
    pdfjs.GlobalWorkerOptions.workerSrc = new URL(`${FOLDER}pdf.worker.min.mjs`, document.baseURI).href;
    return pdfjs;
  });
  return loading;
}

/** Pages in their order, with an empty line between them. */
export async function textOf(bytes) {
  const pdfjs = await library();
  const task = pdfjs.getDocument({
    data: bytes,
    isEvalSupported: false,
    useWasm: false,
    BinaryDataFactory: CharacterMaps,
    cMapUrl: "cmaps/",
    cMapPacked: true,
    useSystemFonts: true,
    disableFontFace: true,
    stopAtErrors: false,
    verbosity: 0,
  });
  try {
    const file = await task.promise;
    const pages = [];
    for (let number = 1; number <= Math.min(file.numPages, MAX_PAGES); number += 1) {
      const { items } = await (await file.getPage(number)).getTextContent();
      pages.push(
        items
          .map((item) => (item.str ?? "") + (item.hasEOL ? "\n" : ""))
          .join("")
          .trim(),
      );
    }
    if (file.numPages > MAX_PAGES) pages.push(`(${file.numPages - MAX_PAGES} more pages were left out.)`);
    return pages.join("\n\n");
  } catch (error) {
    throw new Error(error.name === "PasswordException" ? "it is protected by a password" : "it is damaged or not a PDF file");
  } finally {
    await task.destroy();
  }
}
