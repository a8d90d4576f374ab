// Reads JSON without losing anything: numbers keep their digits, objects their order and their repeated keys.
// JavaScript's own parser rounds integers above 2^53 and moves keys that look like numbers to the front.
// It does not recurse, because values may be nested a hundred thousand deep.

export class Num {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
}

export class Obj {
  constructor() { this.entries = []; }
  get(key) {
    for (let i = this.entries.length - 1; i >= 0; i--) if (this.entries[i][0] === key) return this.entries[i][1];
    return undefined;
  }
}

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORDS = [["true", true], ["false", false], ["null", null]];

export function parse(text) {
  let at = 0;
  const open = [];
  let result;
  let whole = false;

  const fail = (wanted) => { throw new SyntaxError(`not JSON: ${wanted} expected at character ${at}`); };
  const skip = () => { SPACE.lastIndex = at; SPACE.test(text); at = SPACE.lastIndex; };
  const string = () => {
    const begin = at;
    // A sticky expression over a long string would overflow, so long ones are searched for their end.
    let end = begin + 1;
    for (;;) {
      const quote = text.indexOf('"', end);
      if (quote < 0) fail("the end of a string");
      let slashes = 0;
      while (text[quote - 1 - slashes] === "\\") slashes++;
      end = quote + 1;
      if (slashes % 2 === 0) break;
    }
    at = end;
    // One string alone is exact in JavaScript's parser.
    return JSON.parse(text.slice(begin, end));
  };
  const put = (value) => {
    if (open.length === 0) { result = value; whole = true; return; }
    const top = open[open.length - 1];
    if (Array.isArray(top.value)) top.value.push(value);
    else top.value.entries.push([top.key, value]);
  };
  const key = (top) => {
    skip();
    if (text[at] !== '"') fail("a key");
    top.key = string();
    skip();
    if (text[at] !== ":") fail("a colon");
    at++;
  };
  // After a value: go on in what is open, or close it.
  const after = () => {
    while (open.length) {
      skip();
      const top = open[open.length - 1];
      const list = Array.isArray(top.value);
      if (text[at] === ",") {
        at++;
        if (!list) key(top);
        return;
      }
      if (text[at] !== (list ? "]" : "}")) fail(list ? "a comma or ]" : "a comma or }");
      at++;
      open.pop();
      put(top.value);
    }
  };

  while (!whole) {
    skip();
    const sign = text[at];
    if (sign === "{" || sign === "[") {
      at++;
      const top = { value: sign === "[" ? [] : new Obj(), key: null };
      skip();
      if (text[at] === (sign === "[" ? "]" : "}")) { at++; put(top.value); after(); continue; }
      open.push(top);
      if (sign === "{") key(top);
      continue;
    }
    if (sign === '"') put(string());
    else {
      const word = WORDS.find(([name]) => text.startsWith(name, at));
      if (word) { at += word[0].length; put(word[1]); }
      else {
        NUMBER.lastIndex = at;
        if (!NUMBER.test(text)) fail("a value");
        put(new Num(text.slice(at, NUMBER.lastIndex)));
        at = NUMBER.lastIndex;
      }
    }
    after();
  }
  skip();
  if (at !== text.length) fail("the end");
  return result;
}

// What fields of ours need: plain objects, and numbers where they are exact. `keep` names fields that stay as parsed.
export function plain(node, keep = []) {
  if (node instanceof Num) {
    const number = Number(node.text);
    return Number.isSafeInteger(number) || !/^-?\d+$/.test(node.text) ? number : node.text;
  }
  if (Array.isArray(node)) return node.map((each) => plain(each, keep));
  if (node instanceof Obj) {
    const made = {};
    for (const [name, value] of node.entries) {
      Object.defineProperty(made, name, {
        value: keep.includes(name) ? value : plain(value, keep), enumerable: true, writable: true, configurable: true,
      });
    }
    return made;
  }
  return node;
}

// Writes a parsed value again, digit by digit, indented. It does not recurse either.
export function write(root, indent = 2) {
  const parts = [];
  const todo = [{ value: root, depth: 0 }];
  const line = (depth) => (indent ? "\n" + " ".repeat(indent * depth) : "");
  while (todo.length) {
    const job = todo.pop();
    if (job.text !== undefined) { parts.push(job.text); continue; }
    const { value, depth } = job;
    if (value instanceof Num) parts.push(value.text);
    else if (Array.isArray(value) || value instanceof Obj) {
      const list = Array.isArray(value);
      const items = list ? value.map((each) => [null, each]) : value.entries;
      if (items.length === 0) { parts.push(list ? "[]" : "{}"); continue; }
      parts.push(list ? "[" : "{");
      todo.push({ text: line(depth) + (list ? "]" : "}") });
      for (let i = items.length - 1; i >= 0; i--) {
        const [name, each] = items[i];
        todo.push({ value: each, depth: depth + 1 });
        const before = (i ? "," : "") + line(depth + 1) + (list ? "" : JSON.stringify(name) + (indent ? ": " : ":"));
        todo.push({ text: before });
      }
    } else parts.push(JSON.stringify(value));
  }
  return parts.join("");
}
