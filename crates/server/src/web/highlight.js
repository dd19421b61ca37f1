// Colours for code: comments, strings, numbers and keywords, by one small table of languages. It is only colour: what
// it does not know stays plain.

const C_LIKE = { line: "//", open: "/*", close: "*/" };
const HASH = { line: "#" };
const words = (text) => new Set(text.split(" "));
const LANGUAGES = {
  rust: { ...C_LIKE, quotes: '"', keywords: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while Some None Ok Err") },
  python: { ...HASH, quotes: "\"'", keywords: words("and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match case None nonlocal not or pass raise return True try while with yield self") },
  javascript: { ...C_LIKE, quotes: "\"'`", keywords: words("async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield") },
  c: { ...C_LIKE, quotes: "\"'", keywords: words("auto bool break case char class const constexpr continue default delete do double else enum extern false float for goto if inline int long namespace new nullptr private protected public return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while __global__ __shared__ __device__") },
  go: { ...C_LIKE, quotes: "\"'`", keywords: words("break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select struct switch true type var string int error") },
  java: { ...C_LIKE, quotes: "\"'", keywords: words("abstract boolean break byte case catch char class continue default do double else enum extends false final finally float for if implements import instanceof int interface long new null package private protected public return short static super switch this throw throws true try var void while fun val when object") },
  shell: { ...HASH, quotes: "\"'", keywords: words("case do done elif else esac export fi for function if in local return set source then until while echo cd sudo") },
  sql: { line: "--", open: "/*", close: "*/", quotes: "'\"", keywords: words("SELECT FROM WHERE AND OR NOT NULL INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE INDEX JOIN LEFT RIGHT INNER OUTER ON GROUP BY ORDER HAVING LIMIT AS DISTINCT UNION select from where and or not null insert into values update set delete create table index join left right inner outer on group by order having limit as distinct union") },
  data: { ...HASH, quotes: "\"'", keywords: words("true false null yes no") },
};
const NAMES = {
  rs: "rust", py: "python", python3: "python", js: "javascript", ts: "javascript", jsx: "javascript", tsx: "javascript", typescript: "javascript", json: "javascript",
  cpp: "c", "c++": "c", cc: "c", h: "c", hip: "c", cuda: "c", cu: "c", csharp: "java", cs: "java", kotlin: "java", swift: "java", scala: "java", golang: "go",
  sh: "shell", bash: "shell", zsh: "shell", console: "shell", toml: "data", yaml: "data", yml: "data", ini: "data",
};
const LONGEST = 50_000;

/** Fills `target` with `text`, coloured where the language is known. */
export function highlight(target, text, name) {
  const key = name.toLowerCase();
  const language = LANGUAGES[NAMES[key] ?? key];
  if (!language || text.length > LONGEST) {
    target.textContent = text;
    return;
  }
  const add = (kind, piece) => {
    if (!kind) return target.append(piece);
    const span = document.createElement("span");
    span.className = `hl-${kind}`;
    span.textContent = piece;
    target.append(span);
  };
  let plain = "";
  let at = 0;
  const take = (kind, end) => {
    if (plain) add(null, plain);
    plain = "";
    add(kind, text.slice(at, end));
    at = end;
  };
  while (at < text.length) {
    const here = text[at];
    if (language.open && text.startsWith(language.open, at)) {
      const end = text.indexOf(language.close, at + 2);
      take("comment", end < 0 ? text.length : end + language.close.length);
    } else if (text.startsWith(language.line, at)) {
      const end = text.indexOf("\n", at);
      take("comment", end < 0 ? text.length : end);
    } else if (language.quotes.includes(here)) {
      let end = at + 1;
      const triple = text.startsWith(here.repeat(3), at) ? here.repeat(3) : here;
      end = at + triple.length;
      while (end < text.length && !text.startsWith(triple, end)) {
        if (triple.length === 1 && here !== "`" && text[end] === "\n") break;
        end += text[end] === "\\" ? 2 : 1;
      }
      take("string", Math.min(end + triple.length, text.length));
    } else if (/[0-9]/.test(here)) {
      take("number", at + /^[0-9][\w.]*/.exec(text.slice(at))[0].length);
    } else if (/[A-Za-z_]/.test(here)) {
      const word = /^\w+/.exec(text.slice(at, at + 200))[0];
      if (language.keywords.has(word)) take("keyword", at + word.length);
      else {
        plain += word;
        at += word.length;
      }
    } else {
      plain += here;
      at += 1;
    }
  }
  if (plain) add(null, plain);
}
