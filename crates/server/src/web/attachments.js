// Files to send along: by the button, by dropping them anywhere on the page, by pasting. Text in any common encoding,
// and the text of PDF files, read here in the browser. Refuses what is neither, or too large.

import { $, button, element, size } from "./dom.js";

const MAX_TEXT_BYTES = 1 << 20;
const MAX_PDF_BYTES = 32 << 20;

export class Attachments {
  #list = $("files");
  #files = [];
  #say;
  #onImport;
  #reading = 0;

  /** `say` tells the user something; `onImport` takes a file of conversations. */
  constructor(say, onImport) {
    this.#say = say;
    this.#onImport = onImport;
    const input = $("attach-input");
    $("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      // A copy: the list is emptied with the field.
      this.#add([...input.files]);
      input.value = "";
    });
    this.#listenForDrops();
    document.addEventListener("paste", (event) => {
      if (!event.clipboardData?.files.length) return;
      event.preventDefault();
      this.#add([...event.clipboardData.files]);
    });
  }

  /** The whole page takes files: dropped beside the message box, one would replace the page. */
  #listenForDrops() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const mark = (isOver) => document.body.classList.toggle("drop", isOver);
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(true);
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) mark(false);
    });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(false);
      if (!document.querySelector("dialog[open]")) this.#add([...event.dataTransfer.files]);
    });
  }

  get isReading() {
    return this.#reading > 0;
  }

  /** The files attached so far; the list is empty afterwards. */
  take() {
    const taken = this.#files;
    this.#files = [];
    this.#draw();
    return taken;
  }

  async #add(files) {
    this.#say("");
    for (const file of files) {
      this.#reading += 1;
      this.#draw(file.name);
      try {
        const text = await read(file);
        if (!isExport(file, text) || !(await this.#onImport(text))) this.#files.push({ name: file.name, text });
      } catch (error) {
        this.#say(error instanceof Unreadable ? error.message : `${file.name} could not be read: ${error.message}`);
      }
      this.#reading -= 1;
      this.#draw();
    }
  }

  #draw(reading) {
    const items = this.#files.map((file) => {
      const remove = button(
        `Remove ${file.name}`,
        () => {
          this.#files = this.#files.filter((f) => f !== file);
          this.#draw();
        },
        "✕",
      );
      return element("li", "", element("span", "file-chip", `${file.name} · ${size(file.text.length)}`, remove));
    });
    if (reading) items.push(element("li", "", element("span", "file-chip", `Reading ${reading} ...`)));
    this.#list.replaceChildren(...items);
  }
}

class Unreadable extends Error {}

async function read(file) {
  const isPdf = file.type === "application/pdf" || /\.pdf$/i.test(file.name);
  const most = isPdf ? MAX_PDF_BYTES : MAX_TEXT_BYTES;
  if (file.size > most) throw new Unreadable(`${file.name} is ${size(file.size)}; the most is ${size(most)}.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = isPdf ? await readPdf(file.name, bytes) : decode(bytes);
  if (text === undefined) throw new Unreadable(`${file.name} is not a text file.`);
  if (text.length > MAX_TEXT_BYTES)
    throw new Unreadable(`${file.name} holds ${size(text.length)} of text; the most is ${size(MAX_TEXT_BYTES)}.`);
  return text;
}

async function readPdf(name, bytes) {
  const { textOf } = await import("./pdf.js");
  const text = await textOf(bytes);
  if (!text.trim()) throw new Unreadable(`${name} holds no text, only pictures.`);
  return text;
}

/** UTF-8; UTF-16 with its mark; otherwise Windows' Latin, unless bytes say that it is no text. */
function decode(bytes) {
  const mark =
    bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : bytes[0] === 0xfe && bytes[1] === 0xff ? "utf-16be" : undefined;
  if (mark) return new TextDecoder(mark).decode(bytes);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? undefined : text;
  } catch {
    const isBinary = bytes.some((byte) => byte < 9 || (byte > 13 && byte < 32 && byte !== 27));
    return isBinary ? undefined : new TextDecoder("windows-1252").decode(bytes);
  }
}

function isExport(file, text) {
  return /\.json$/i.test(file.name) && text.slice(0, 200).includes("rocinante-conversations");
}
