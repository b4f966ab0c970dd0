// The sidebar: the user's runs with their small curves, those of the open notebook first.

import { Runs, isOver } from "./runs.js";
import { short, sparkline } from "./sparkline.js";

const NOTE_MS = 6000;
const DRAW_MS = 250;

export function sidebarOf({ Widget, server, stream, tracker, app, documents, icon }) {
  return class Sidebar extends Widget {
    constructor() {
      super();
      this.id = "minicluster-runs";
      this.title.icon = icon;
      this.title.caption = "Minicluster: runs";
      this.addClass("mc-runs");
      this.node.setAttribute("role", "region");
      this.node.setAttribute("aria-label", "Runs on the cluster");
      this.runs = new Runs(server, stream, () => this.drawSoon());
      this.build();
      tracker.currentChanged.connect(() => this.drawSoon());
      tracker.forEach((panel) => this.listen(panel));
      tracker.widgetAdded.connect((_, panel) => this.listen(panel));
      this.onVisibility = () => this.seen();
      document.addEventListener("visibilitychange", this.onVisibility);
    }

    // The notebook's cells are known, one was run, or its kernel waits for a job (see kernels.js).
    listen(panel) {
      panel.context.ready.then(() => this.drawSoon());
      panel.sessionContext.statusChanged.connect((_, status) => /busy|idle/.test(status) && this.runs.loadSoon());
      panel.sessionContext.iopubMessage.connect((_, { content }) => {
        const job = content?.minicluster?.job;
        if (Number.isInteger(job) && !this.runs.all.has(job)) this.runs.loadSoon();
      });
    }

    build() {
      const head = element("div", { className: "mc-runs-head" }, element("h2", {}, "Runs"));
      this.page = button("All runs", "Open the page of all runs in a new browser tab", () => this.open("runs"));
      const reload = button("Reload", "Load the list again", () => this.runs.load());
      head.append(this.page, reload);
      this.note = element("p", { className: "mc-runs-note", role: "status" });
      this.lists = element("div", {});
      this.node.append(head, this.note, this.lists);
    }

    onAfterShow() {
      this.seen();
    }

    onAfterHide() {
      this.seen();
    }

    onAfterAttach() {
      this.seen();
    }

    seen() {
      const visible = this.isVisible && document.visibilityState === "visible";
      if (visible !== this.runs.visible) this.runs.show(visible);
    }

    open(path) {
      if (this.runs.pages) window.open(this.runs.pages + path, "_blank", "noopener");
    }

    say(text) {
      this.said = text;
      clearTimeout(this.quiet);
      this.quiet = setTimeout(() => {
        this.said = "";
        this.draw();
      }, NOTE_MS);
      this.draw();
    }

    drawSoon() {
      this.drawing ??= setTimeout(() => {
        this.drawing = undefined;
        if (this.isDisposed) return;
        // A button that is drawn anew while it is pressed would not be clicked.
        if (this.node.querySelector("button:active")) this.drawSoon();
        else this.draw();
      }, DRAW_MS);
    }

    draw() {
      const { runs, node } = this;
      const focused = node.contains(document.activeElement) ? keyOf(document.activeElement) : null;
      this.note.textContent = this.said || about(runs);
      this.page.hidden = !runs.pages;
      const panel = tracker.currentWidget;
      const here = runs.list.filter((run) => isOf(run, panel));
      const others = runs.list.filter((run) => !here.includes(run));
      this.lists.replaceChildren(
        ...(here.length ? [this.list("This notebook", here)] : []),
        ...(others.length ? [this.list(here.length ? "Others" : "Your runs", others)] : []),
      );
      if (focused) [...node.querySelectorAll("button")].find((one) => keyOf(one) === focused)?.focus();
    }

    list(title, runs) {
      const items = runs.map((run) => this.item(run));
      return element("section", {}, element("h3", {}, title), element("ul", {}, ...items));
    }

    item(run) {
      const curve = this.runs.curves.get(run.id);
      const name = button("", `Go to the cell of run ${run.id}`, () => this.goTo(run));
      name.className = "mc-run-name";
      name.append(dot(run), element("span", { className: "mc-run-number" }, `${run.id}`), element("span", {}, run.name));
      const last = curve?.value.findLast((value) => value !== null);
      const value = last === undefined ? "" : `${curve.name} ${short(last)}`;
      const words = [stateOf(run), value].filter(Boolean).map((text) => element("span", { title: text }, text));
      const middle = element("div", { className: "mc-run-middle" }, element("div", {}, ...words));
      if (curve) middle.append(sparkline(curve));
      const actions = element("div", { className: "mc-run-actions" }, ...this.actions(run));
      const item = element("li", {}, name, middle, actions);
      item.dataset.run = run.id;
      return item;
    }

    actions(run) {
      const found = [button("Page", `Open the page of run ${run.id} in a new browser tab`, () => this.open(`runs/${run.id}`))];
      if (!isOver(run)) found.push(button("Stop", `Stop run ${run.id}`, () => this.stop(run)));
      for (const verb of isOver(run) ? ["result", "rerun"] : ["rerun"]) {
        const line = `%distribute ${verb} ${run.id}`;
        found.push(button(`Copy ${verb}`, `Copy ${line}`, () => this.copy(line)));
      }
      for (const one of found) one.dataset.run = run.id;
      return found;
    }

    async stop(run) {
      try {
        await this.runs.stop(run);
        this.say(`Run ${run.id} is being stopped.`);
        this.runs.load();
      } catch (error) {
        this.say(error.message);
      }
    }

    async copy(line) {
      this.say((await copied(line)) ? `Copied: ${line}` : `Select and copy: ${line}`);
    }

    // By the cell's id first; then the notebook by its path.
    async goTo(run) {
      const panels = [];
      tracker.forEach((panel) => panels.push(panel));
      const open = panels.filter((panel) => panel.context.isReady && cellOf(panel, run));
      const panel = open.find((one) => pathOf(one) === run.path) ?? (run.there ? await this.openNotebook(run) : open[0]);
      if (!panel) return this.say(run.notebook ? `The notebook of run ${run.id} is not here any more.` : `Run ${run.id} is of no notebook.`);
      app.shell.activateById(panel.id);
      const cell = cellOf(panel, run);
      if (!cell) return this.say(`The cell of run ${run.id} is not in ${panel.title.label} any more.`);
      panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
      await panel.content.scrollToCell?.(cell)?.catch(() => {});
      panel.content.activate();
    }

    async openNotebook(run) {
      const panel = documents?.openOrReveal(run.path);
      await panel?.context?.ready;
      await panel?.revealed;
      return panel?.content?.widgets ? panel : undefined;
    }

    dispose() {
      document.removeEventListener("visibilitychange", this.onVisibility);
      this.runs.show(false);
      super.dispose();
    }
  };
}

const pathOf = (panel) => panel.context.localPath ?? panel.context.path;
const cellOf = (panel, run) => (run.cell ? panel.content.widgets.find((cell) => cell.model.id === run.cell) : undefined);
const keyOf = (one) => `${one.dataset.run} ${one.title}`;

// A copied notebook has the ids of the original's cells: they count only if the original is gone.
function isOf(run, panel) {
  if (!panel?.context.isReady) return false;
  return run.path ? run.path === pathOf(panel) || (!run.there && Boolean(cellOf(panel, run))) : false;
}

function about({ kind, problem, list }) {
  if (problem) return `${problem}; it is tried again.`;
  if (kind === "loading") return "Loading …";
  if (kind === "none") return "This Jupyter server is not connected to a cluster. In a notebook: %distribute connect";
  if (kind === "older") return "The cluster's job service is of an earlier release, which keeps no runs. Panels under cells work as before.";
  return list.length ? "" : "No runs yet. Put %%distribute on the first line of a cell, and run it.";
}

function stateOf(run) {
  const { state, started_at: started, ended_at: ended } = run;
  if (!started || !ended) return state;
  const seconds = Math.round(ended - started);
  const parts = [[Math.floor(seconds / 3600), "h"], [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"]];
  return `${state}, ${parts.filter(([number]) => number).slice(0, 2).map(([number, unit]) => `${number} ${unit}`).join(" ") || "0 s"}`;
}

function dot(run) {
  const one = element("span", { className: `mc-badge mc-${run.state}` });
  one.setAttribute("aria-hidden", "true");
  return one;
}

function button(text, title, clicked) {
  const made = element("button", { type: "button", title }, text);
  made.addEventListener("click", clicked);
  return made;
}

// Texts of users become text nodes only.
function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  if (properties.role) made.setAttribute("role", properties.role);
  made.append(...children.filter((child) => child !== ""));
  return made;
}

// The clipboard's API exists only over HTTPS or on localhost; over plain HTTP the old way works.
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const focused = document.activeElement;
  const field = element("textarea", { value: text, className: "mc-off-page" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
