// The panel of one job, the same for every front end. In JupyterLab its messages come from the job service through
// our extension (lab/index.js), elsewhere from the kernel through a widget (widget.py).
//
// A message is a change of what is shown, made by RunView (view.py):
//   number   counts changes. After a gap, wait for the next `full` message.
//   full     true: this replaces everything before.
//   head     {id, cell, name, state, title, detail, nodes, log, elapsed_s, ticking, terminal, stopping, failed_rank}
//   ranks    {"0": {first, start, entries, skipped}}: entries of a rank's output, with absolute numbers. Those
//            before `first` are dropped, `entries` begin at `start`. skipped: bytes of the log left out.
//   metrics  {plot, progress: null | {share, text, left}}; plot: SVG and a legend as HTML
// An entry is a line of text, or displayed data: {mime: data}, see RICH, for an image also width and height.

const QUIET_MS = 25_000; // The sender says something each 10 s.
const ANSWER_MS = 6_000; // A Stop is answered within this time.
const NO_ANSWER = "there was no answer. The job's page, behind Full log, has a Stop, too";
const STOP_GRACE_MS = 250;

// --- small things ---------------------------------------------------------------------------------------------

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function setText(node, text) {
  // Only real changes, so that a screen reader does not repeat the text.
  if (node.textContent !== text) node.textContent = text;
}

function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = two(Math.floor(whole / 60) % 60);
  return hours ? `${hours}:${minutes}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const TAGS = new Set("div span b svg g line text polyline circle".split(" "));
const ATTRIBUTES = new Set(
  ("class style title viewbox width height role aria-label x y x1 x2 y1 y2 cx cy r points fill stroke stroke-width " +
    "stroke-linejoin text-anchor font-size font-family").split(" "),
);

// Copies a drawing, without scripts, handlers and links.
function drawing(html) {
  const copied = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
    if (node.nodeType !== Node.ELEMENT_NODE || !TAGS.has(node.localName)) return "";
    const copy = document.createElementNS(node.namespaceURI, node.localName);
    for (const { name, value } of node.attributes) {
      if (ATTRIBUTES.has(name.toLowerCase()) && !/url\s*\(/i.test(value)) copy.setAttribute(name, value);
    }
    copy.append(...[...node.childNodes].map(copied));
    return copy;
  };
  const parsed = new DOMParser().parseFromString(html, "text/html");
  return [...parsed.body.childNodes].map(copied);
}

// --- the state of the job -------------------------------------------------------------------------------------

export class JobState {
  constructor() {
    this.number = -1;
    this.head = null;
    this.headAt = 0;
    this.ranks = new Map();
    this.metrics = { plot: "", progress: null };
  }

  // Returns false when a change before this one was missed.
  apply(change) {
    if (!change.full && change.number !== this.number + 1) return false;
    if (change.full && change.number < this.number) return true;
    if (change.full) this.ranks.clear();
    this.number = change.number;
    if (change.head) {
      this.head = change.head;
      this.headAt = performance.now();
    }
    for (const [rank, part] of Object.entries(change.ranks ?? {})) this.applyRank(Number(rank), part);
    if (change.metrics) this.metrics = change.metrics;
    return true;
  }

  // Forgets the number, for a new sender.
  startAnew() {
    this.number = -1;
  }

  applyRank(rank, part) {
    const old = this.ranks.get(rank) ?? { first: part.start, entries: [] };
    const kept = old.entries.slice(Math.max(0, part.first - old.first), Math.max(0, part.start - old.first));
    this.ranks.set(rank, { first: part.first, entries: kept.concat(part.entries), skipped: part.skipped });
  }

  elapsed(until) {
    const since = this.head.ticking ? Math.max(0, until - this.headAt) / 1000 : 0;
    return clock(this.head.elapsed_s + since);
  }
}

// --- the headline: state, where, how long, Stop ---------------------------------------------------------------

class Headline {
  constructor(onStop) {
    this.node = make("div", "mc-head");
    this.badge = make("span", "mc-badge");
    this.title = make("span", "mc-title");
    this.title.setAttribute("aria-live", "polite");
    this.where = make("span", "mc-where");
    this.time = make("span", "mc-time");
    this.time.title = "Elapsed time";
    this.log = make("a", "mc-link", "Full log");
    this.log.target = "_blank";
    this.log.rel = "noopener";
    this.stop = make("button", "mc-stop", "Stop");
    this.stop.type = "button";
    this.stop.setAttribute("aria-label", "Stop this job on all ranks");
    this.stop.addEventListener("click", onStop);
    this.detail = make("div", "mc-detail");
    this.detail.setAttribute("aria-live", "polite");
    const right = make("span", "mc-right");
    right.append(this.time, this.log, this.stop);
    const top = make("div", "mc-top");
    top.append(this.badge, this.title, this.where, right);
    this.node.append(top, this.detail);
  }

  // silent: why the state may be old, "" while messages arrive. asked: whether Stop was pressed.
  // trouble: why Stop failed. note: the front end's own message.
  draw(head, { silent, asked, trouble, note }) {
    this.badge.className = `mc-badge mc-${silent ? "silent" : head.state}`;
    setText(this.title, silent ? `Last seen: ${head.title}` : head.title);
    const name = head.name === "cell" ? "" : head.name;
    const cell = head.cell ? `cell ${head.cell}` : "";
    setText(this.where, [`job ${head.id}`, cell, name, head.nodes].filter(Boolean).join(" · "));
    this.log.href = /^(https?:|\/)/.test(head.log) ? head.log : "";
    const detail = [trouble, silent, head.detail, note].filter(Boolean).join(" · ");
    setText(this.detail, detail);
    this.detail.hidden = !detail;
    this.stop.hidden = head.terminal || Boolean(silent);
    this.stop.disabled = asked || isEnding(head);
    setText(this.stop, this.stop.disabled ? "Stopping…" : "Stop");
  }

  tick(elapsed) {
    setText(this.time, elapsed);
  }
}

function isEnding(head) {
  return head.terminal || head.stopping || head.state === "stopping" || head.state === "failing";
}

// --- the progress bar -----------------------------------------------------------------------------------------

class ProgressBar {
  constructor() {
    this.node = make("div", "mc-progress");
    this.bar = make("div", "mc-bar");
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-valuemin", "0");
    this.bar.setAttribute("aria-valuemax", "100");
    this.fill = make("div", "mc-fill");
    this.bar.append(this.fill);
    this.text = make("span", "mc-progresstext");
    this.left = make("span", "mc-left");
    this.node.append(this.text, this.bar, this.left);
  }

  draw(progress, over) {
    this.node.hidden = !progress;
    if (!progress) return;
    const percent = progress.share === null ? null : Math.round(progress.share * 100);
    this.bar.classList.toggle("mc-unknown", percent === null);
    this.fill.style.width = percent === null ? "" : `${percent}%`;
    if (percent === null) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", String(percent));
    this.bar.setAttribute("aria-label", progress.text);
    setText(this.text, progress.text);
    setText(this.left, over ? "" : progress.left);
  }
}

// --- one tab for each rank ------------------------------------------------------------------------------------

class RankTabs {
  constructor(onChoose) {
    this.node = make("div", "mc-tabs");
    this.node.setAttribute("role", "tablist");
    this.node.setAttribute("aria-label", "Ranks");
    this.onChoose = onChoose;
    this.picked = null;
    this.chosen = 0;
    this.shown = "";
  }

  draw(ranks, failed) {
    // The lowest rank is shown, until one fails or the user picks another.
    this.chosen = this.picked ?? (ranks.includes(failed) ? failed : ranks[0]) ?? 0;
    const wanted = `${ranks.join()};${this.chosen}`;
    if (wanted === this.shown) return;
    this.shown = wanted;
    this.node.hidden = ranks.length < 2;
    this.node.replaceChildren(...ranks.map((rank) => this.tab(rank, ranks)));
  }

  tab(rank, ranks) {
    const tab = make("button", "mc-tab", `rank ${rank}`);
    tab.type = "button";
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-selected", String(rank === this.chosen));
    tab.tabIndex = rank === this.chosen ? 0 : -1;
    tab.addEventListener("click", () => this.choose(rank));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const at = ranks.indexOf(rank) + step + ranks.length;
      this.choose(ranks[at % ranks.length]);
      this.node.querySelector('[aria-selected="true"]').focus();
    });
    return tab;
  }

  choose(rank) {
    this.picked = rank;
    this.onChoose();
  }
}

// --- what a rank printed and displayed ------------------------------------------------------------------------

// How displayed data is drawn: functions from the data to a node, by MIME type, the best first.
const RICH = new Map([
  ["application/vnd.minicluster.coloured", coloured],
  ["text/html", frame],
  ["image/svg+xml", (svg, entry) => image(`data:image/svg+xml,${encodeURIComponent(svg)}`, entry)],
  ...["png", "jpeg", "gif"].map((kind) => [
    `image/${kind}`,
    (data, entry) => image(`data:image/${kind};base64,${data}`, entry),
  ]),
  ["text/markdown", (text) => make("pre", "mc-rich", text)],
  ["text/latex", (text) => make("pre", "mc-rich", text)],
  ["text/plain", (text) => make("pre", "mc-rich", text)],
]);

function drawEntry(entry, rich) {
  if (typeof entry === "string") return make("div", "mc-line", entry);
  for (const [mime, draw] of rich) {
    if (mime in entry) return draw(entry[mime], entry);
  }
  return make("div", "mc-line", `[${Object.keys(entry).join(", ")}]`);
}

// A line with the colours of a terminal.
function coloured(html) {
  const node = make("div", "mc-line");
  node.append(...drawing(html));
  return node;
}

function image(source, entry) {
  const node = make("img", "mc-image");
  node.src = source;
  node.alt = entry["text/plain"] ?? "";
  if (entry.width) node.width = entry.width;
  if (entry.height) node.height = entry.height;
  return node;
}

const FRAME_STYLE = `body { margin: 0; font: 13px system-ui, sans-serif; overflow-x: auto }
  table { border-collapse: collapse; font-size: 12px } td, th { padding: 3px 8px; text-align: right }
  thead th { border-bottom: 1px solid } tbody tr:nth-child(odd) { background: rgba(128, 128, 128, 0.1) }`;
const FRAME_SCRIPT = `new ResizeObserver(() => parent.postMessage(
  { minicluster: document.documentElement.offsetHeight }, "*")).observe(document.documentElement);`;
const FRAME_PX = 600;

// HTML of a rank, in a frame with an origin of its own: its scripts cannot reach this page.
function frame(html) {
  const node = make("iframe", "mc-frame");
  node.setAttribute("sandbox", "allow-scripts");
  node.title = "HTML that a rank displayed";
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--jp-content-font-color1") || "#222";
  const style = `${FRAME_STYLE} body { color: ${colour} }`;
  node.srcdoc = `<!doctype html><style>${style}</style>${html}<script>${FRAME_SCRIPT}</script>`;
  return node;
}

// A frame sends its height; no other sender is heard.
window.addEventListener("message", ({ source, data }) => {
  const height = Number(data?.minicluster);
  if (!height) return;
  for (const node of document.querySelectorAll("iframe.mc-frame")) {
    if (node.contentWindow === source) node.style.height = `${Math.min(FRAME_PX, height + 8)}px`;
  }
});

class RankOutput {
  constructor(rich) {
    this.rich = rich;
    this.node = make("div", "mc-output");
    this.node.tabIndex = 0;
    this.node.setAttribute("role", "tabpanel");
    this.before = make("div", "mc-line", "… (earlier output: see the full log)");
    this.lines = make("div");
    this.node.append(this.before, this.lines);
    this.rank = null;
    this.shown = { first: 0, entries: [] };
  }

  draw(rank, part = { first: 0, entries: [], skipped: 0 }) {
    const atEnd = this.node.scrollHeight - this.node.scrollTop - this.node.clientHeight < 24;
    if (rank !== this.rank) this.clear(rank);
    const drawn = this.drawEntries(part);
    this.before.hidden = !(part.first > 0 || part.skipped > 0);
    this.node.hidden = !part.entries.length;
    if (drawn && atEnd) this.node.scrollTop = this.node.scrollHeight;
  }

  clear(rank) {
    this.rank = rank;
    this.shown = { first: 0, entries: [] };
    this.lines.replaceChildren();
    this.node.setAttribute("aria-label", `Output of rank ${rank}`);
  }

  // Keeps the nodes of unchanged entries; returns whether any changed.
  drawEntries(part) {
    const old = this.shown;
    const gone = Math.min(Math.max(0, part.first - old.first), old.entries.length);
    const before = old.entries.slice(gone);
    const begin = part.first === old.first + gone ? sameEntries(before, part.entries) : 0;
    if (!gone && begin === before.length && begin === part.entries.length) return false;
    const nodes = [...this.lines.childNodes];
    for (const node of [...nodes.slice(0, gone), ...nodes.slice(gone + begin)]) node.remove();
    this.lines.append(...part.entries.slice(begin).map((entry) => drawEntry(entry, this.rich)));
    this.shown = part;
    return true;
  }
}

// The number of first entries that are equal.
function sameEntries(ours, theirs) {
  let same = 0;
  while (same < ours.length && same < theirs.length && isSame(ours[same], theirs[same])) same += 1;
  return same;
}

function isSame(one, other) {
  return one === other || (typeof one === "object" && JSON.stringify(one) === JSON.stringify(other));
}

// --- curves ---------------------------------------------------------------------------------------------------

class Plot {
  constructor() {
    this.node = make("div", "mc-plotbox");
    this.shown = null;
  }

  draw(plot) {
    if (plot === this.shown) return;
    this.shown = plot;
    this.node.replaceChildren(...drawing(plot));
    this.node.hidden = !plot;
  }
}

// --- all of it ------------------------------------------------------------------------------------------------

// A panel in an element. `stop` requests the job's stop; if it returns a promise, its error is shown. Panels of one
// job may share their state; whoever changes it calls `redraw`. rich: drawings of this front end in place of RICH's.
export class Panel {
  constructor(root, stop, state = new JobState(), rich = []) {
    this.state = state;
    this.frame = 0;
    this.asked = false;
    this.trouble = "";
    this.silent = "";
    this.note = "";
    this.heardAt = performance.now();
    this.askStop = stop;
    this.redraw = this.redraw.bind(this);
    this.headline = new Headline(() => this.stop());
    this.progress = new ProgressBar();
    this.tabs = new RankTabs(this.redraw);
    this.output = new RankOutput(new Map([...RICH, ...rich]));
    this.plot = new Plot();
    this.build(root);
    this.ticking = setInterval(() => this.tick(), 1000);
  }

  build(root) {
    root.classList.add("mc-panel");
    root.setAttribute("role", "group");
    const text = make("div", "mc-text");
    text.append(this.tabs.node, this.output.node);
    const body = make("div", "mc-body");
    body.append(text, this.plot.node);
    root.append(this.headline.node, this.progress.node, body);
  }

  dispose() {
    clearInterval(this.ticking);
    cancelAnimationFrame(this.frame);
  }

  apply(change) {
    this.hear();
    if (this.state.apply(change)) this.redraw();
  }

  // Notes that the sender is alive.
  hear() {
    this.heardAt = performance.now();
    if (!this.silent) return;
    this.silent = "";
    this.redraw();
  }

  // Says that what is shown may be old.
  fallSilent(why) {
    if (this.silent || !this.state.head || this.state.head.terminal) return;
    this.silent = why;
    this.redraw();
  }

  // Adds the front end's own message.
  say(note) {
    if (note === this.note) return;
    this.note = note;
    this.redraw();
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const { head, ranks, metrics } = this.state;
    if (!head) return;
    this.headline.draw(head, this);
    this.progress.draw(metrics.progress, head.terminal);
    this.tabs.draw([...ranks.keys()].sort((a, b) => a - b), head.failed_rank);
    this.output.draw(this.tabs.chosen, ranks.get(this.tabs.chosen));
    this.plot.draw(metrics.plot);
    this.tick();
  }

  tick() {
    if (!this.state.head) return;
    const now = performance.now();
    if (now - this.heardAt > QUIET_MS) this.fallSilent("its kernel or its server sends nothing any more");
    this.headline.tick(this.state.elapsed(this.silent ? this.heardAt : now));
  }

  async stop() {
    this.asked = true;
    this.trouble = "";
    this.redraw();
    const unanswered = setTimeout(() => this.stopFailed(NO_ANSWER), ANSWER_MS);
    try {
      await this.askStop();
    } catch (error) {
      clearTimeout(unanswered);
      this.stopFailed(error.message);
    }
  }

  stopFailed(why) {
    if (isEnding(this.state.head)) return;
    this.asked = false;
    this.trouble = `The job was not stopped: ${why}`;
    this.redraw();
  }
}

// --- as a widget ----------------------------------------------------------------------------------------------

function stopByKernel(model, state) {
  model.send({ kind: "stop" });
  setTimeout(() => {
    // If the message arrived or the job has ended, an interrupt would hit another cell.
    if (!isEnding(state.head)) model.widget_manager?.kernel?.interrupt?.();
  }, STOP_GRACE_MS);
}

function render({ model, el }) {
  const panel = new Panel(el, () => stopByKernel(model, panel.state));
  const onMessage = (change) => panel.apply(change);
  const onGone = () => panel.fallSilent("its kernel restarted or ended");
  const first = model.get("state");
  if (first) panel.apply(first);
  model.on("msg:custom", onMessage);
  model.on("comm_live_update", onGone);
  return () => {
    model.off("msg:custom", onMessage);
    model.off("comm_live_update", onGone);
    panel.dispose();
  };
}

export default { render };
