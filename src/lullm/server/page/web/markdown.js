// A little of Markdown as elements. What a model says becomes text nodes only: nothing here parses HTML.

export function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** `code` and **bold** within a line. */
function inline(parent, text) {
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (part.length > 2 && part.startsWith("`")) parent.append(make("code", part.slice(1, -1)));
    else if (part.length > 4 && part.startsWith("**")) parent.append(make("strong", part.slice(2, -2)));
    else if (part) parent.append(part);
  }
  return parent;
}

const ITEM = /^\s{0,6}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^#{1,6}\s+(.*)$/;
const FENCE = /^\s{0,3}(```|~~~)/;

/** Fenced code, lists, headings, paragraphs. */
export function markdown(text) {
  const found = document.createDocumentFragment();
  const lines = text.split("\n");
  let paragraph = [];
  let list = null;
  const flush = () => {
    if (paragraph.join("").trim()) found.append(inline(make("p"), paragraph.join("\n").trim()));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const fence = line.match(FENCE);
    const item = line.match(ITEM);
    const heading = line.match(HEADING);
    if (fence || heading || item) flush();
    if (!item) list = null;
    if (fence) {
      const code = [];
      while (++at < lines.length && !lines[at].trimStart().startsWith(fence[1])) code.push(lines[at]);
      const block = make("pre");
      block.append(make("code", code.join("\n")));
      found.append(block);
    } else if (item) {
      const tag = item[1] === undefined ? "UL" : "OL";
      if (list?.tagName !== tag) {
        list = make(tag);
        if (item[1] !== undefined) list.start = Number(item[1]);
        found.append(list);
      }
      list.append(inline(make("li"), item[2]));
    } else if (heading) {
      found.append(inline(make("h4"), heading[1]));
    } else if (line.trim() === "") {
      flush();
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return found;
}
