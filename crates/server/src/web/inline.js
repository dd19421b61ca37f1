// What stands within a paragraph, as plain data: emphasis, code, links, formulas and line breaks.
//
// Linear in its input. Marks are found in one pass; each search for an end either consumes what it passes, stops where
// the next search begins, or is remembered as vain. Emphasis pairs up as in CommonMark, on one stack.

const SPECIAL = /[\\`!\[\]<*_~$h\n]/g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
// A number and a word: "$10, or US$".
const PRICE = /^\d[\d.,]* *[A-Za-z]{2}/;
const MAX_DEPTH = 24;
const SAFE = /^(https?:\/\/|mailto:)/i;

/** Strings and { type, ... }: strong, em, del and link have children; code and math have text; break has nothing. */
export function parseInline(text) {
  return new Inline(text).parse();
}

class Inline {
  #text;
  #at = 0;
  #plainFrom = 0;
  #pieces = [];
  #runs = []; // delimiters of emphasis that are not paired yet
  #brackets = [];
  #ticks; // length of a run of backticks -> where such runs are
  #vain = new Set(); // ends that do not occur any more

  constructor(text) {
    this.#text = text;
  }

  parse() {
    const text = this.#text;
    while (this.#at < text.length) {
      SPECIAL.lastIndex = this.#at;
      const found = SPECIAL.exec(text);
      if (!found) break;
      this.#at = found.index;
      this.#mark(found[0]);
    }
    this.#flush(text.length);
    pair(this.#runs);
    return build(this.#pieces);
  }

  #mark(sign) {
    switch (sign) {
      case "\\":
        return this.#escape();
      case "`":
        return this.#code();
      case "$":
        return this.#dollar();
      case "[":
        return this.#openBracket(1);
      case "!":
        return this.#text[this.#at + 1] === "[" ? this.#openBracket(2) : this.#skip(1);
      case "]":
        return this.#closeBracket();
      case "<":
        return this.#angle();
      case "h":
        return this.#address();
      case "\n":
        return this.#newline();
      default:
        return this.#run(sign);
    }
  }

  /** Text up to `end` that has no meaning. */
  #flush(end) {
    if (end > this.#plainFrom) this.#pieces.push(this.#text.slice(this.#plainFrom, end));
    this.#plainFrom = end;
  }

  #skip(count) {
    this.#at += count;
  }

  /** A piece instead of the text up to `end`. */
  #put(piece, end) {
    this.#flush(this.#at);
    this.#pieces.push(piece);
    this.#at = end;
    this.#plainFrom = end;
  }

  #find(mark, from) {
    if (this.#vain.has(mark)) return -1;
    const found = this.#text.indexOf(mark, from);
    if (found < 0) this.#vain.add(mark);
    return found;
  }

  #escape() {
    const next = this.#text[this.#at + 1];
    if (next === "\n") return this.#put({ type: "break" }, this.#at + 2);
    if (next === "(" || next === "[") {
      const end = this.#find(next === "(" ? "\\)" : "\\]", this.#at + 2);
      if (end < 0) return this.#skip(2);
      return this.#put({ type: "math", isDisplay: next === "[", text: this.#text.slice(this.#at + 2, end) }, end + 2);
    }
    if (next === undefined || !ESCAPABLE.test(next)) return this.#skip(1);
    this.#flush(this.#at);
    this.#plainFrom = this.#at + 1;
    this.#at += 2;
  }

  #code() {
    const length = this.#length("`");
    const places = (this.#ticks ??= backticks(this.#text)).get(length) ?? [];
    // Runs that were passed are not looked at again.
    while (places.length && places.at(-1) < this.#at + length) places.pop();
    if (!places.length) return this.#skip(length);
    const end = places.pop();
    let text = this.#text.slice(this.#at + length, end).replaceAll("\n", " ");
    if (text.startsWith(" ") && text.endsWith(" ") && text.trim()) text = text.slice(1, -1);
    this.#put({ type: "code", text }, end + length);
  }

  #length(sign) {
    let end = this.#at;
    while (this.#text[end] === sign) end += 1;
    return end - this.#at;
  }

  #dollar() {
    const text = this.#text;
    if (text[this.#at + 1] === "$") {
      const end = this.#find("$$", this.#at + 2);
      if (end < 0) return this.#skip(2);
      return this.#put({ type: "math", isDisplay: true, text: text.slice(this.#at + 2, end) }, end + 2);
    }
    // As pandoc has it, so that "$5 and $10" are prices.
    const isOpen = !isWord(text[this.#at - 1]) && !isSpace(text[this.#at + 1]);
    let end = isOpen ? this.#find("$", this.#at + 1) : -1;
    while (end > 0 && text[end - 1] === "\\") end = this.#find("$", end + 1);
    if (end < 0 || isSpace(text[end - 1]) || isWord(text[end + 1]) || text[end + 1] === "$") return this.#skip(1);
    const inner = text.slice(this.#at + 1, end);
    if (PRICE.test(inner)) return this.#skip(1);
    this.#put({ type: "math", isDisplay: false, text: inner }, end + 1);
  }

  #openBracket(length) {
    const piece = { bracket: this.#text.slice(this.#at, this.#at + length) };
    this.#put(piece, this.#at + length);
    this.#brackets.push({ piece, runs: this.#runs.length });
  }

  #closeBracket() {
    const opener = this.#brackets.pop();
    const target = opener && this.#text[this.#at + 1] === "(" ? this.#destination(this.#at + 2) : undefined;
    if (!target) return this.#skip(1);
    pair(this.#runs.splice(opener.runs));
    // No link holds another.
    this.#brackets = [];
    opener.piece.address = target.address;
    this.#put({ endOf: opener.piece }, target.end);
  }

  /** `address "title")`. It holds no brackets, so that the next search begins where this one ends. */
  #destination(from) {
    const text = this.#text;
    let at = from;
    while (isSpace(text[at]) && at < text.length) at += 1;
    let address = "";
    if (text[at] === "<") {
      const start = at + 1;
      for (at = start; at < text.length && !"<>\n[]".includes(text[at]);) at += 1;
      if (text[at] !== ">") return undefined;
      address = text.slice(start, at);
      at += 1;
    } else {
      const start = at;
      for (let depth = 0; at < text.length && !isSpace(text[at]) && text[at] !== "[" && text[at] !== "]"; at += 1) {
        if (text[at] === "(") depth += 1;
        else if (text[at] === ")" && (depth -= 1) < 0) break;
      }
      address = text.slice(start, at);
    }
    while (isSpace(text[at]) && at < text.length) at += 1;
    if (text[at] === '"') {
      for (at += 1; at < text.length && !'"\n[]'.includes(text[at]);) at += 1;
      if (text[at] !== '"') return undefined;
      at += 1;
      while (isSpace(text[at]) && at < text.length) at += 1;
    }
    return text[at] === ")" ? { address, end: at + 1 } : undefined;
  }

  #angle() {
    const text = this.#text;
    const from = this.#at + 1;
    let end = from;
    while (end < text.length && text[end] !== "<" && text[end] !== ">" && text[end] !== "\n") end += 1;
    const inner = text[end] === ">" ? text.slice(from, end) : "";
    if (SAFE.test(inner) && !inner.includes(" ")) this.#put({ type: "link", address: inner, children: [inner] }, end + 1);
    else if (/^br *\/?$/i.test(inner.slice(0, 8)) && inner.length <= 8) this.#put({ type: "break" }, end + 1);
    else this.#skip(1);
  }

  /** An address that stands in the text. */
  #address() {
    const text = this.#text;
    const head = ["https://", "http://"].find((scheme) => text.startsWith(scheme, this.#at));
    if (!head || isWord(text[this.#at - 1])) return this.#skip(1);
    let end = this.#at + head.length;
    let depth = 0;
    for (; end < text.length && !isSpace(text[end]) && !"<>\"'[]`|".includes(text[end]); end += 1) {
      if (text[end] === "(") depth += 1;
      else if (text[end] === ")") depth -= 1;
    }
    for (; end > this.#at; end -= 1) {
      const last = text[end - 1];
      if (last === ")" && depth < 0) depth += 1;
      else if (!".,;:!?*_~".includes(last)) break;
    }
    if (end <= this.#at + head.length) return this.#skip(head.length);
    const address = text.slice(this.#at, end);
    this.#put({ type: "link", address, children: [address] }, end);
  }

  #newline() {
    let end = this.#at;
    while (end > this.#plainFrom && this.#text[end - 1] === " ") end -= 1;
    if (this.#at - end < 2) return this.#skip(1);
    const after = this.#at + 1;
    this.#at = end;
    this.#put({ type: "break" }, after);
  }

  #run(sign) {
    const count = this.#length(sign);
    const [before, after] = [this.#text[this.#at - 1], this.#text[this.#at + count]];
    let canOpen = !isSpace(after);
    let canClose = !isSpace(before);
    if (sign === "_") {
      canOpen &&= !isWord(before);
      canClose &&= !isWord(after);
    }
    if ((sign === "~" && count !== 2) || (!canOpen && !canClose)) return this.#skip(count);
    const run = { sign, count, length: count, canOpen, canClose, opens: [], closes: [] };
    this.#put(run, this.#at + count);
    this.#runs.push(run);
  }
}

/** Where runs of backticks of each length are, last first. */
function backticks(text) {
  const found = new Map();
  for (const run of text.matchAll(/`+/g)) {
    if (!found.has(run[0].length)) found.set(run[0].length, []);
    found.get(run[0].length).push(run.index);
  }
  for (const places of found.values()) places.reverse();
  return found;
}

function isSpace(sign) {
  return sign === undefined || sign === " " || sign === "\n" || sign === "\t" || sign === "\u00a0";
}

function isWord(sign) {
  return sign !== undefined && /[\p{L}\p{N}_]/u.test(sign);
}

/** Pairs delimiters of emphasis, which are in the order of the text. */
function pair(runs) {
  const open = [];
  // How much of the stack was searched in vain for each sort of closer.
  const searched = new Map();
  const shrink = (length) => {
    open.length = length;
    for (const [key, height] of searched) if (height > length) searched.set(key, length);
  };
  for (const run of runs) {
    const key = `${run.sign}${run.canOpen ? 1 : 0}${run.length % 3}`;
    while (run.canClose && run.count > 0) {
      let at = open.length - 1;
      const bottom = searched.get(key) ?? 0;
      while (at >= bottom && !isPair(open[at], run)) at -= 1;
      if (at < bottom) {
        searched.set(key, open.length);
        break;
      }
      const opener = open[at];
      const used = run.sign === "~" || (opener.count >= 2 && run.count >= 2) ? 2 : 1;
      const type = run.sign === "~" ? "del" : used === 2 ? "strong" : "em";
      opener.opens.push(type);
      run.closes.push(type);
      opener.count -= used;
      run.count -= used;
      shrink(opener.count > 0 ? at + 1 : at);
    }
    if (run.canOpen && run.count > 0) open.push(run);
  }
}

function isPair(opener, closer) {
  if (opener.sign !== closer.sign) return false;
  // CommonMark's rule of three, so that `*a**b*` is one emphasis.
  const isEither = opener.canClose || closer.canOpen;
  return !isEither || (opener.length + closer.length) % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

/** The tree of the pieces. What is nested too deep joins its parent. */
function build(pieces) {
  const root = [];
  const stack = [root];
  let links = 0;
  const open = (node) => {
    if (stack.length < MAX_DEPTH) stack.at(-1).push(node);
    stack.push(stack.length < MAX_DEPTH ? node.children : stack.at(-1));
  };
  for (const piece of pieces) {
    if (piece.opens) {
      piece.closes.forEach(() => stack.pop());
      if (piece.count) stack.at(-1).push(piece.sign.repeat(piece.count));
      for (const type of piece.opens.reverse()) open({ type, children: [] });
    } else if (piece.bracket) {
      if (piece.address === undefined) stack.at(-1).push(piece.bracket);
      else {
        links += 1;
        // An address that could run something is dropped; its text stays.
        if (SAFE.test(piece.address)) open({ type: "link", address: piece.address, children: [] });
        else stack.push(stack.at(-1));
      }
    } else if (piece.endOf) {
      links -= 1;
      const children = stack.pop();
      if (!children.length) children.push(piece.endOf.address);
    } else if (piece.type === "link" && links) stack.at(-1).push(...piece.children);
    else stack.at(-1).push(piece);
  }
  return root;
}
