// Searches the shown output. What is found is marked without a change of the document, which is drawn anew often.

const MOST = 10_000;
const byId = (id) => document.getElementById(id);
const log = byId("log");
let ranges = [];
let at = -1;

byId("find").addEventListener("input", () => {
  at = -1;
  searchLog();
});
byId("find").addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    event.preventDefault();
    go(event.shiftKey ? -1 : 1);
  }
});
byId("find-next").addEventListener("click", () => go(1));

export function searchLog() {
  const wanted = (byId("find").value ?? "").toLowerCase();
  ranges = wanted ? found(wanted) : [];
  at = Math.min(at, ranges.length - 1);
  mark();
}

// Finds text also where colours change within it.
function found(wanted) {
  const { nodes, starts, text } = textOf(log);
  const made = [];
  let node = 0;
  const place = (offset) => {
    while (node + 1 < nodes.length && starts[node + 1] <= offset) {
      node += 1;
    }
    return [nodes[node], offset - starts[node]];
  };
  for (let from = text.indexOf(wanted); from >= 0 && made.length < MOST; from = text.indexOf(wanted, from + wanted.length)) {
    const range = new Range();
    range.setStart(...place(from));
    const [last, offset] = place(from + wanted.length - 1);
    range.setEnd(last, offset + 1);
    made.push(range);
  }
  return made;
}

function textOf(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  const starts = [];
  let text = "";
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    nodes.push(node);
    starts.push(text.length);
    text += node.data;
  }
  const lower = text.toLowerCase();
  // A few letters are longer in lower case: then places would be wrong.
  return { nodes, starts, text: lower.length === text.length ? lower : text };
}

function go(by) {
  if (!ranges.length) {
    return;
  }
  at = (at + by + ranges.length) % ranges.length;
  byId("follow").checked = false;
  const place = ranges[at].getBoundingClientRect();
  log.scrollTop += place.top - log.getBoundingClientRect().top - log.clientHeight / 2;
  mark();
}

function mark() {
  const wanted = byId("find").value;
  byId("found").textContent = wanted ? `${at >= 0 ? `${at + 1} of ` : ""}${ranges.length}${ranges.length === MOST ? "+" : ""} found` : "";
  if (globalThis.Highlight) {
    CSS.highlights.set("mc-found", new Highlight(...ranges));
    CSS.highlights.set("mc-found-here", new Highlight(...ranges.slice(at, at + 1).filter(() => at >= 0)));
  }
}
