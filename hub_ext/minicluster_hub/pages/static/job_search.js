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

function found(wanted) {
  const texts = document.createTreeWalker(log, NodeFilter.SHOW_TEXT);
  const made = [];
  for (let node = texts.nextNode(); node && made.length < MOST; node = texts.nextNode()) {
    const text = node.data.toLowerCase();
    for (let from = text.indexOf(wanted); from >= 0 && made.length < MOST; from = text.indexOf(wanted, from + wanted.length)) {
      const range = new Range();
      range.setStart(node, from);
      range.setEnd(node, from + wanted.length);
      made.push(range);
    }
  }
  return made;
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
