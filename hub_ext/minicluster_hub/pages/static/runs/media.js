// Pictures, histograms and tables that a run's ranks logged: by name, with a slider over the steps.

import { address, ask, askFile, element, jobId, tellOf } from "../service.js";
import { dataAddress } from "../file_preview.js";
import { numberText } from "./numbers.js";

const PAGE = 100;
const ROWS = 1000;
const byId = (id) => document.getElementById(id);
const shown = new Map();

// Looks for new ones; what is open goes on to the newest, unless the user chose another.
export async function showMedia() {
  const { names, dropped } = await ask(`api/runs/${jobId}/media`, { query: { name: "" } });
  byId("media").hidden = names.length === 0;
  byId("media-dropped").hidden = dropped === 0;
  byId("media-dropped").textContent = `${dropped} more are not kept: they are beyond what is remembered of one run.`;
  const counts = new Map();
  names.forEach(({ name, count }) => counts.set(name, (counts.get(name) ?? 0) + count));
  for (const [name, count] of counts) {
    if (!shown.has(name)) {
      shown.set(name, new Media(name, shown.size < 6));
      byId("media-names").append(shown.get(name).node);
    }
    shown.get(name).expect(count);
  }
}

class Media {
  constructor(name, open) {
    this.name = name;
    this.list = [];
    this.count = 0;
    this.asked = 0;
    this.summary = element("summary", { className: "fw-semibold text-break" }, name);
    this.slider = element("input", { type: "range", className: "form-range", min: 0, "aria-label": `${name}: which one` });
    this.slider.addEventListener("input", () => this.#show());
    this.where = element("output", { className: "small text-body-secondary mc-number" });
    this.content = element("div");
    this.node = element("details", { open, className: "mc-chart" }, this.summary, this.slider, this.where, this.content);
    this.node.addEventListener("toggle", () => this.#load());
  }

  expect(count) {
    this.count = count;
    this.#load();
  }

  #load() {
    if (this.node.open && this.list.length < this.count && !this.loading) {
      this.loading = true;
      tellOf("media", this.#loadAll().finally(() => {
        this.loading = false;
      }));
    }
  }

  async #loadAll() {
    const atNewest = Number(this.slider.value) >= this.list.length - 1;
    for (let more = true; more; ) {
      const query = { name: this.name, after: this.list.at(-1)?.number ?? 0 };
      const { media } = await ask(`api/runs/${jobId}/media`, { query });
      this.list.push(...media);
      more = media.length >= PAGE;
    }
    this.slider.max = Math.max(0, this.list.length - 1);
    this.slider.hidden = this.list.length < 2;
    if (atNewest) {
      this.slider.value = this.slider.max;
      await this.#draw();
    }
  }

  #show() {
    tellOf("media", this.#draw());
  }

  async #draw() {
    const one = this.list[Number(this.slider.value)];
    if (!one) {
      return;
    }
    const step = one.step === null ? "" : `step ${numberText(one.step)}, `;
    this.where.textContent = `${step}rank ${one.rank} (${Number(this.slider.value) + 1} of ${this.list.length})`;
    const number = (this.asked += 1);
    const made = await contentOf(one, `${this.name}, ${this.where.textContent}`);
    if (number === this.asked) {
      this.content.replaceChildren(made);
    }
  }
}

async function contentOf({ number, mime }, text) {
  const answer = await askFile(address(`api/runs/${jobId}/media/${number}`));
  if (mime.startsWith("image/")) {
    const src = await dataAddress(await answer.blob(), mime);
    return element("img", { src, alt: text, className: "mc-displayed" });
  }
  const data = await answer.json();
  return mime.includes("histogram") ? histogram(data, text) : table(data);
}

function histogram({ counts, edges, not_finite: others }, text) {
  const most = Math.max(1, ...counts);
  const bars = counts.map((count) => {
    const bar = element("span", { className: "mc-bar" });
    bar.style.height = `${(100 * count) / most}%`;
    return bar;
  });
  const [low, high] = [edges[0], edges.at(-1)].map(numberText);
  const label = `${text}: from ${low} to ${high}, at most ${most} in one of ${counts.length} bins`;
  const picture = element("div", { className: "mc-bars", role: "img", "aria-label": label }, ...bars);
  const ends = element("div", { className: "d-flex justify-content-between small" }, element("span", {}, low), element("span", {}, high));
  const rows = counts.map((count, at) => [numberText(edges[at]), numberText(edges[at + 1]), String(count)]);
  const asTable = element("details", { className: "small" }, element("summary", {}, "As a table"), cells(["From", "To", "Values"], rows));
  const lost = others ? element("p", { className: "small mb-0" }, `${others} values are not finite.`) : "";
  return element("div", {}, picture, ends, lost, asTable);
}

function table({ columns, rows, total }) {
  const shownRows = rows.slice(0, ROWS).map((row) => row.map((cell) => (typeof cell === "number" ? numberText(cell) : String(cell ?? ""))));
  const cut = total > shownRows.length ? element("p", { className: "small mb-0" }, `The first ${shownRows.length} of ${total} rows.`) : "";
  return element("div", {}, cells(columns, shownRows), cut);
}

function cells(columns, rows) {
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, String(name))));
  const body = rows.map((row) => element("tr", {}, ...row.map((text) => element("td", {}, text))));
  const made = element("table", { className: "table table-sm small mb-0" }, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { className: "table-responsive mc-media-table", tabIndex: 0 }, made);
}
