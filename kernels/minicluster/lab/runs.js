// The user's runs in the sidebar: loaded once, then changed by the page's one connection. It is connected only while
// the list is in view and a run is open: a forgotten page must not keep its server in use.

import { addPoint, mainMetric } from "./sparkline.js";

const OVER = ["succeeded", "failed", "stopped"];
const AGAIN_MS = 10_000;
const SOON_MS = 3_000;

export const isOver = (run) => OVER.includes(run.state);

export class Runs {
  constructor(server, stream, changed) {
    this.server = server;
    this.stream = stream;
    this.changed = changed; // called after each change
    this.visible = false;
    this.loading = null;
    this.clear();
    this.problem = "";
  }

  clear() {
    this.service = "";
    this.pages = "";
    this.kind = "loading"; // then: runs, none, older, problem
    this.all = new Map();
    this.curves = new Map(); // by run
  }

  get list() {
    return [...this.all.values()].sort((one, other) => other.id - one.id);
  }

  // The list came into view, or went out of it.
  show(visible) {
    this.visible = visible;
    if (visible) this.load();
    this.connect();
  }

  // Something may have happened: a cell was run, for example.
  loadSoon() {
    if (!this.visible || this.stream.lists(this)) return;
    this.soon ??= setTimeout(() => {
      this.soon = undefined;
      this.load();
    }, SOON_MS);
  }

  load() {
    this.loading ??= this.read().finally(() => {
      this.loading = null;
    });
    return this.loading;
  }

  async read() {
    clearTimeout(this.again);
    try {
      const told = await this.server.ask("runs");
      this.clear();
      Object.assign(this, { service: told.service, pages: told.pages ?? "", kind: told.kind, problem: "" });
      for (const run of told.runs ?? []) this.all.set(run.id, run);
      for (const { run, name, step, value } of told.curves ?? []) this.curves.set(run, { name, step: [...step], value: [...value] });
    } catch (error) {
      this.problem = error.message;
      if (this.kind === "loading") this.kind = "problem";
      if (this.visible) this.again = setTimeout(() => this.load(), AGAIN_MS);
    }
    this.connect();
    this.changed();
  }

  connect() {
    const wanted = this.visible && this.kind === "runs" && this.list.some((run) => !isOver(run));
    this.stream.list(wanted ? this : null);
  }

  // A message of the page's connection, see stream.js.
  take({ event, data }) {
    if (event === "opened") return this.load();
    if (event === "job") this.job(data);
    if (event === "metrics") this.metrics(data);
    this.changed();
  }

  job(job) {
    if (!this.all.has(job.id)) return this.load(); // Its notebook is not told here.
    this.all.set(job.id, { ...this.all.get(job.id), ...job });
    if (isOver(job)) this.connect();
  }

  metrics({ run, metrics }) {
    if (!this.all.has(run)) return;
    const name = this.curves.get(run)?.name ?? mainMetric(Object.keys(metrics));
    const last = metrics[name];
    if (!last) return;
    if (!this.curves.has(run)) this.curves.set(run, { name, step: [], value: [] });
    addPoint(this.curves.get(run), last.step, last.value);
  }

  fallSilent() {
    this.problem = "no contact with the Jupyter server";
    this.changed();
  }

  stop(run) {
    return this.stream.stop({ service: this.service, job: run.id, made: run.created_at });
  }
}
