// Curves of one run or of several over one another: one chart per metric, grouped by the name's part before "/".
// A chart loads its curves when it comes into view, and again when there are new values.

import { ask, element, tell } from "../service.js";
import { Chart } from "./chart.js";
import { curveToDraw } from "./curve_data.js";

const POINTS_OF_ONE = 1000;
const POINTS_OF_SEVERAL = 400;
const NAMES_AT_ONCE = 20;
const REFRESH_MS = 2000;
const REMEMBERED = "minicluster-curves";
const byId = (id) => document.getElementById(id);
const labels = { step: "step", time: "time" };

export class Curves {
  #runs = [];
  #names = [];
  #charts = new Map();
  #wanted = new Set();
  #range = null;
  #loading = false;
  #again = null;
  #version = 0; // of the values
  #settings = 0; // of what is asked for

  // ranks: the ranks to show of a single run; null: the lowest that logs the metric.
  constructor() {
    this.ranks = null;
    this.seen = new IntersectionObserver((entries) => this.#sawCharts(entries), { rootMargin: "200px" });
    this.#remember();
    for (const id of ["curve-axis", "curve-log", "curve-smoothing"]) {
      byId(id).addEventListener("input", () => this.#changed(id));
    }
    for (const id of ["curve-from", "curve-to"]) {
      byId(id).addEventListener("change", () => this.zoom(this.#typedRange()));
    }
    byId("curve-all").addEventListener("click", () => this.zoom(null));
    byId("curve-search").addEventListener("input", () => this.#arrange());
  }

  // runs: [{ id, label, colour, started_at }]. names: their metrics.
  show(runs, names) {
    const before = JSON.stringify([this.#runs, this.#names]);
    const all = [...new Set(names)].sort(byName);
    const ofOthers = JSON.stringify(this.#runs.map((run) => run.id)) !== JSON.stringify(runs.map((run) => run.id));
    [this.#runs, this.#names] = [runs, all];
    if (JSON.stringify([runs, all]) === before) {
      return;
    }
    this.#offerAxes();
    this.#arrange();
    if (ofOthers) {
      this.reload();
    }
  }

  // There are new values: charts in view load them soon, together.
  refresh() {
    this.#again ??= setTimeout(() => {
      this.#again = null;
      this.update();
    }, REFRESH_MS);
  }

  // Other curves are asked for: those on their way are not drawn any more.
  reload() {
    this.#settings += 1;
    this.update();
  }

  update() {
    this.#version += 1;
    this.#ask([...this.#charts].filter(([, chart]) => chart.inView).map(([name]) => name));
  }

  // range: [low, high] of the horizontal axis; null: all.
  zoom(range) {
    this.#range = range;
    const [low, high] = range ?? ["", ""];
    byId("curve-from").value = low === "" ? "" : Number(low.toPrecision(6));
    byId("curve-to").value = high === "" ? "" : Number(high.toPrecision(6));
    this.reload();
  }

  #typedRange() {
    const [from, to] = [byId("curve-from").valueAsNumber, byId("curve-to").valueAsNumber];
    return from < to ? [from, to] : this.#range && Number.isNaN(from) && Number.isNaN(to) ? null : this.#range;
  }

  #changed(id) {
    byId("curve-smoothing-value").textContent = byId("curve-smoothing").value;
    const { axis, log, smoothing } = this.#how();
    localStorage.setItem(REMEMBERED, JSON.stringify({ axis, log, smoothing }));
    if (id === "curve-axis") {
      this.zoom(null);
    } else {
      this.#charts.forEach((chart) => this.#draw(chart));
    }
  }

  #remember() {
    const { axis = "step", log = false, smoothing = 0 } = JSON.parse(localStorage.getItem(REMEMBERED) ?? "{}");
    this.wantedAxis = axis;
    byId("curve-axis").value = axis;
    byId("curve-log").checked = log;
    byId("curve-smoothing").value = smoothing;
    byId("curve-smoothing-value").textContent = byId("curve-smoothing").value;
  }

  #how() {
    const axis = byId("curve-axis").value || "step";
    return {
      axis,
      axisLabel: labels[axis] ?? axis,
      log: byId("curve-log").checked,
      smoothing: Number(byId("curve-smoothing").value),
      range: this.#range,
    };
  }

  // The metrics are axes, too; "epoch" first.
  #offerAxes() {
    const chosen = byId("curve-axis").value || this.wantedAxis;
    const first = this.#names.filter((name) => /(^|\/)epoch$/.test(name));
    const names = [...new Set([...first, ...this.#names])];
    byId("curve-axis-metrics").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    byId("curve-axis").value = chosen in labels || names.includes(chosen) ? chosen : "step";
  }

  // Put the charts into their groups. Groups that the user closed stay closed.
  #arrange() {
    const part = byId("curve-search").value.toLowerCase();
    const shown = this.#names.filter((name) => name.toLowerCase().includes(part));
    for (const [name, chart] of this.#charts) {
      if (!shown.includes(name)) {
        this.seen.unobserve(chart.node);
        chart.remove();
        this.#charts.delete(name);
      }
    }
    const groups = Map.groupBy(shown, groupOf);
    byId("curves").replaceChildren(...[...groups].map(([group, names]) => this.#group(group, names, groups.size)));
    byId("curves-empty").textContent = this.#names.length ? "No metric has this in its name." : this.emptyText ?? "No metrics yet.";
    byId("curves-empty").hidden = shown.length > 0;
    byId("curve-controls").hidden = this.#names.length === 0;
  }

  #group(group, names, groups) {
    const grid = element("div", { className: "mc-charts" }, ...names.map((name) => this.#chart(name).node));
    if (groups === 1) {
      return grid;
    }
    const closed = (this.closed ??= new Set());
    const title = element("summary", { className: "fw-semibold mb-1" }, `${group || "Others"} (${names.length})`);
    const made = element("details", { className: "mb-3", open: !closed.has(group) }, title, grid);
    made.addEventListener("toggle", () => (made.open ? closed.delete(group) : closed.add(group)));
    return made;
  }

  #chart(name) {
    if (!this.#charts.has(name)) {
      const chart = new Chart(name, { zoomed: (range) => this.zoom(range), sync: "mc-curves" });
      chart.node.chart = Object.assign(chart, { name, inView: false, version: -1 });
      this.#charts.set(name, chart);
      this.seen.observe(chart.node);
    }
    return this.#charts.get(name);
  }

  #sawCharts(entries) {
    for (const { target, isIntersecting } of entries) {
      target.chart.inView = isIntersecting;
    }
    const stale = entries.filter(({ target: { chart } }) => chart.inView && chart.version !== this.#version);
    this.#ask(stale.map(({ target }) => target.chart.name));
  }

  #ask(names) {
    names.forEach((name) => this.#wanted.add(name));
    if (this.#wanted.size && !this.#loading) {
      this.#loading = true;
      this.#load().then(() => this.#loaded(null), (error) => this.#loaded(error));
    }
  }

  #loaded(error) {
    this.#loading = false;
    tell("curves", error);
    if (error) {
      this.#wanted.clear();
    }
    this.#ask([]);
  }

  async #load() {
    await Promise.resolve(); // those that are asked for at the same time are loaded together
    while (this.#wanted.size) {
      const names = [...this.#wanted].slice(0, NAMES_AT_ONCE);
      names.forEach((name) => this.#wanted.delete(name));
      await this.#loadSome(names.filter((name) => this.#charts.has(name)));
    }
  }

  async #loadSome(names) {
    const [version, settings] = [this.#version, this.#settings];
    const { axis } = this.#how();
    const asked = axis in labels ? names : [...new Set([...names, axis])];
    const curves = names.length && this.#runs.length ? await this.#curvesOf(asked, axis) : [];
    for (const name of names) {
      const chart = this.#charts.get(name);
      if (chart && settings === this.#settings) {
        chart.version = version;
        chart.found = curves;
        this.#draw(chart);
      }
    }
    if (settings !== this.#settings) {
      names.forEach((name) => this.#wanted.add(name));
    }
  }

  async #curvesOf(names, axis) {
    const points = this.#runs.length * (this.ranks?.length ?? 1) > 1 ? POINTS_OF_SEVERAL : POINTS_OF_ONE;
    const query = [...names.map((name) => ["name", name]), ["points", points]];
    const ranged = this.#range && axis in labels;
    if (this.ranks) {
      return this.#ofRanks([...query, ...this.#span(axis, this.#runs[0])]);
    }
    if (this.#runs.length > 1 && !(ranged && axis === "time")) {
      const runs = this.#runs.map((run) => ["run", run.id]);
      return (await ask("api/run-curves", { query: [...runs, ...query, ...this.#span(axis)] })).curves;
    }
    // Over time since the start, the same range is another one for each run.
    const each = this.#runs.map((run) => ask(`api/runs/${run.id}/curves`, { query: [...query, ...this.#span(axis, run)] }));
    return (await Promise.all(each)).flatMap((list) => list.curves);
  }

  async #ofRanks(query) {
    const [{ id }] = this.#runs;
    const each = this.ranks.map((rank) => ask(`api/runs/${id}/curves`, { query: [...query, ["rank", rank]] }));
    return (await Promise.all(each)).flatMap((list) => list.curves);
  }

  #span(axis, run) {
    if (!this.#range || !(axis in labels)) {
      return [];
    }
    const zero = axis === "time" ? (run?.started_at ?? 0) : 0;
    return [["axis", axis], ["low", this.#range[0] + zero], ["high", this.#range[1] + zero]];
  }

  #draw(chart) {
    if (!chart.found) {
      return;
    }
    const how = this.#how();
    const each = this.#runs.flatMap((run) => chart.found.filter((one) => one.run === run.id && one.name === chart.name).map((curve) => [run, curve]));
    const drawn = each.map(([run, curve]) => {
      const axisCurve = chart.found.find((one) => one.run === run.id && one.name === how.axis && one.rank === curve.rank);
      const [label, colour] = this.ranks ? [`rank ${curve.rank}`, curve.rank] : [run.label, run.colour];
      return { key: `${run.id}/${curve.rank}`, label, colour, ...curveToDraw(curve, how, run.started_at, axisCurve) };
    });
    chart.show(drawn, how);
  }
}

const groupOf = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "");

// Names without a group first.
function byName(one, other) {
  return groupOf(one).localeCompare(groupOf(other)) || one.localeCompare(other, undefined, { numeric: true });
}
