// The live panel of a distributed cell. It is told changes; what it cannot put together it waits for,
// since everything is sent again from time to time.

const STOP_GRACE_MS = 250;

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = two(Math.floor(whole / 60) % 60);
  return hours ? `${hours}:${minutes}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

class RunState {
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

  applyRank(rank, part) {
    const old = this.ranks.get(rank) ?? { first: part.start, lines: [] };
    const kept = old.lines.slice(Math.max(0, part.first - old.first), Math.max(0, part.start - old.first));
    this.ranks.set(rank, { first: part.first, lines: kept.concat(part.lines), skipped: part.skipped });
  }

  elapsed() {
    const since = this.head.ticking ? (performance.now() - this.headAt) / 1000 : 0;
    return clock(this.head.elapsed_s + since);
  }
}

class PanelView {
  constructor(root, onStop) {
    this.root = root;
    this.picked = null;
    this.chosen = 0;
    this.shownTabs = "";
    this.asked = false;
    this.build(onStop);
  }

  build(onStop) {
    this.root.classList.add("mc-panel");
    this.root.setAttribute("role", "group");
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
    this.stop.addEventListener("click", () => {
      this.asked = true;
      this.stop.disabled = true;
      this.stop.textContent = "Stopping…";
      onStop();
    });
    const top = make("div", "mc-top");
    const right = make("span", "mc-right");
    right.append(this.time, this.log, this.stop);
    top.append(this.badge, this.title, this.where, right);
    this.detail = make("div", "mc-detail");
    this.detail.setAttribute("aria-live", "polite");
    this.buildProgress();
    this.tabs = make("div", "mc-tabs");
    this.tabs.setAttribute("role", "tablist");
    this.tabs.setAttribute("aria-label", "Ranks");
    this.output = make("pre", "mc-output");
    this.output.tabIndex = 0;
    this.output.setAttribute("role", "tabpanel");
    const text = make("div", "mc-text");
    text.append(this.tabs, this.output);
    this.plot = make("div", "mc-plotbox");
    const body = make("div", "mc-body");
    body.append(text, this.plot);
    this.root.append(top, this.detail, this.progress, body);
  }

  buildProgress() {
    this.progress = make("div", "mc-progress");
    this.bar = make("div", "mc-bar");
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-valuemin", "0");
    this.bar.setAttribute("aria-valuemax", "100");
    this.fill = make("div", "mc-fill");
    this.bar.append(this.fill);
    this.progressText = make("span", "mc-progresstext");
    this.left = make("span", "mc-left");
    this.progress.append(this.progressText, this.bar, this.left);
  }

  draw(state) {
    const head = state.head;
    if (!head) return;
    this.badge.className = `mc-badge mc-${head.state}`;
    setText(this.title, head.title);
    setText(this.where, [`job ${head.id}`, head.name === "cell" ? "" : head.name, head.nodes].filter(Boolean).join(" · "));
    this.log.href = head.log;
    setText(this.detail, head.detail);
    this.detail.hidden = !head.detail;
    const over = head.terminal || head.stopping || head.state === "stopping" || head.state === "failing";
    this.stop.hidden = head.terminal;
    this.stop.disabled = over || this.asked;
    this.tick(state);
    this.drawProgress(state.metrics.progress);
    this.drawTabs([...state.ranks.keys()].sort((a, b) => a - b));
    this.drawOutput(state.ranks.get(this.chosen));
    if (this.plotShown !== state.metrics.plot) {
      this.plotShown = state.metrics.plot;
      this.plot.innerHTML = state.metrics.plot;
      this.plot.hidden = !state.metrics.plot;
    }
  }

  tick(state) {
    if (state.head) setText(this.time, state.elapsed());
  }

  drawProgress(progress) {
    this.progress.hidden = !progress;
    if (!progress) return;
    const percent = progress.share === null ? null : Math.round(progress.share * 100);
    this.bar.classList.toggle("mc-unknown", percent === null);
    this.fill.style.width = percent === null ? "" : `${percent}%`;
    if (percent === null) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", String(percent));
    this.bar.setAttribute("aria-label", progress.text);
    setText(this.progressText, progress.text);
    setText(this.left, progress.left);
  }

  drawTabs(ranks) {
    // Whichever rank prints first, the lowest is shown, until somebody picks another.
    this.chosen = this.picked ?? ranks[0] ?? 0;
    const wanted = `${ranks.join()};${this.chosen}`;
    if (wanted === this.shownTabs) return;
    this.shownTabs = wanted;
    this.tabs.hidden = ranks.length < 2;
    this.tabs.replaceChildren(...ranks.map((rank) => this.tab(rank, ranks)));
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
      this.tabs.querySelector('[aria-selected="true"]').focus();
    });
    return tab;
  }

  choose(rank) {
    this.picked = rank;
    this.onChoose();
  }

  drawOutput(part) {
    const skipped = part?.skipped ?? 0;
    const before = part && (part.first > 0 || skipped > 0) ? "… (earlier output: see the full log)\n" : "";
    const text = before + (part?.lines ?? []).join("\n");
    if (text === this.shownOutput) return;
    const atEnd = this.output.scrollHeight - this.output.scrollTop - this.output.clientHeight < 24;
    this.shownOutput = text;
    this.output.textContent = text;
    this.output.hidden = !text;
    this.output.setAttribute("aria-label", `Output of rank ${this.chosen}`);
    if (atEnd) this.output.scrollTop = this.output.scrollHeight;
  }
}

function setText(node, text) {
  // Only real changes, so that a screen reader is not told the same again.
  if (node.textContent !== text) node.textContent = text;
}

function stopJob(model, state) {
  model.send({ kind: "stop" });
  setTimeout(() => {
    const head = state.head;
    // The message came through, or the job is over by itself: an interrupt would hit something else.
    if (head.stopping || head.terminal || head.state === "stopping") return;
    model.widget_manager?.kernel?.interrupt?.();
  }, STOP_GRACE_MS);
}

function render({ model, el }) {
  const state = new RunState();
  const view = new PanelView(el, () => stopJob(model, state));
  let frame = 0;
  const redraw = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      view.draw(state);
    });
  };
  view.onChoose = redraw;
  const onMessage = (change) => {
    if (state.apply(change)) redraw();
  };
  const first = model.get("state");
  if (first) state.apply(first);
  view.draw(state);
  model.on("msg:custom", onMessage);
  const ticking = setInterval(() => view.tick(state), 1000);
  return () => {
    clearInterval(ticking);
    model.off("msg:custom", onMessage);
  };
}

export default { render };
