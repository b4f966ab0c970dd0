// One chart of curves over one another, drawn by uPlot. It can be used by keyboard, and read as a table.

import uPlot from "../npm/uplot/dist/uPlot.esm.js";
import { element } from "../service.js";
import { durationText, nearest, numberText, smoothed } from "./numbers.js";

const HEIGHT = 220;
const BANDS = 5; // curves whose extremes are drawn; more would hide each other
// For both themes; beyond these, dashes tell curves apart.
const COLOURS = ["#2f81d6", "#e07b1a", "#2c9f51", "#d9463e", "#9467d8", "#a2725b", "#d566a8", "#6f7c8a", "#a3a117", "#17a2b8"];
const DASHES = [[], [6, 4], [2, 3]];
const HOVERED = ["mousemove", "mouseleave"];

export const colourOf = (index) => COLOURS[index % COLOURS.length];
const dashOf = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length];

const themed = new Set();
new MutationObserver(() => themed.forEach((chart) => chart.redraw())).observe(document.documentElement, {
  attributeFilter: ["data-bs-theme"],
});
const resized = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.fit()));

export class Chart {
  // zoomed([low, high] or null): the user picked a range of the x axis, or all of it. sync: a name; the cursor is
  // shown in all charts with the same one.
  constructor(title, { zoomed, sync }) {
    this.title = title;
    this.zoomed = zoomed;
    this.sync = sync;
    this.curves = [];
    this.plot = element("div", { className: "mc-plot", tabIndex: 0, role: "img" });
    this.plot.chart = this;
    this.plot.addEventListener("keydown", (event) => this.#move(event));
    this.legend = element("ul", { className: "mc-legend list-unstyled small mb-1" });
    this.read = element("span", { className: "visually-hidden", "aria-live": "polite" });
    this.rows = element("tbody");
    const heads = ["Curve", "Points", "Last", "Lowest", "Highest"].map((text) => element("th", { scope: "col" }, text));
    const table = element("table", { className: "table table-sm small mb-0" }, element("thead", {}, element("tr", {}, ...heads)), this.rows);
    const asTable = element("details", { className: "small" }, element("summary", {}, "As a table"), element("div", { className: "table-responsive" }, table));
    const caption = element("figcaption", { className: "fw-semibold text-break" }, title);
    this.node = element("figure", { className: "mc-chart mb-0" }, caption, this.plot, this.legend, this.read, asTable);
    resized.observe(this.plot);
    themed.add(this);
  }

  remove() {
    resized.unobserve(this.plot);
    themed.delete(this);
    this.uplot?.destroy();
    this.node.remove();
  }

  // curves: [{ key, label, colour (an index), x, y, low, high, info: { points, last, low, high } }].
  // how: { log, smoothing, axis ("time": seconds), axisLabel, range }.
  show(curves, how) {
    this.curves = curves;
    this.how = how;
    this.layers = curves.flatMap((curve) => layersOf(curve, how, curves.length <= BANDS));
    const shape = JSON.stringify([how.log, how.axis, this.layers.map(({ key, kind, colour }) => [key, kind, colour])]);
    if (shape !== this.shape || !this.uplot) {
      this.shape = shape;
      this.redraw();
    } else {
      this.uplot.setData(this.#data());
    }
    this.#describe();
  }

  redraw() {
    this.uplot?.destroy();
    this.uplot = null;
    this.plot.replaceChildren();
    if (!this.layers?.some((layer) => layer.y.some((value) => value !== null))) {
      this.plot.append(element("p", { className: "text-body-secondary small mb-0" }, this.#nothing()));
      return;
    }
    this.uplot = new uPlot(this.#options(), this.#data(), this.plot);
  }

  fit() {
    const width = Math.floor(this.plot.clientWidth);
    if (this.uplot && width && width !== this.uplot.width) {
      this.uplot.setSize({ width, height: HEIGHT });
    }
  }

  #nothing() {
    if (!this.curves.some((curve) => curve.y.some((value) => value !== null))) {
      return this.how?.range ? "No values in this range." : "No values yet.";
    }
    return "No values above 0: a logarithmic axis cannot show them.";
  }

  #data() {
    return uPlot.join(this.layers.map((layer) => [layer.x, layer.y]));
  }

  #options() {
    const style = getComputedStyle(this.plot);
    const axis = { stroke: style.color, font: `12px ${style.fontFamily}`, grid: { stroke: style.getPropertyValue("--bs-border-color"), width: 1 }, ticks: { show: false } };
    const { log, axis: kind } = this.how;
    const shownX = kind === "time" ? durationText : numberText;
    return {
      width: Math.floor(this.plot.clientWidth) || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        sync: { key: this.sync, filters: { pub: (type) => HOVERED.includes(type) } },
        bind: { dblclick: () => () => this.zoomed(null) },
        points: { size: 6 },
      },
      scales: { x: { time: false, range: (_, low, high) => this.#rangeX(low, high) }, y: log ? { distr: 3, log: 10 } : {} },
      axes: [
        { ...axis, size: 34, values: (_, ticks) => ticks.map(shownX) },
        { ...axis, size: (_, values) => Math.max(30, ...(values ?? []).map((text) => 7.5 * String(text ?? "").length + 10)), values: log ? (_, ticks) => ticks.map((tick) => (tick === null ? "" : numberText(tick))) : (_, ticks) => ticks.map(numberText) },
      ],
      series: [{}, ...this.layers.map(seriesOf)],
      bands: bandsOf(this.layers),
      hooks: { setSelect: [(plot) => this.#select(plot)], setCursor: [(plot) => this.#hover(plot)] },
    };
  }

  #rangeX(low, high) {
    const [from, to] = this.how.range ?? [low, high];
    return from === to ? [from - 0.5, to + 0.5] : [from, to];
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width > 3) {
      const range = [left, left + width].map((at) => plot.posToVal(at, "x"));
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.zoomed(range);
    }
  }

  #hover(plot) {
    const at = plot.cursor.left < 0 ? null : (plot.cursor.idx ?? null);
    this.#label(at === null ? null : plot.data[0][at]);
  }

  // Arrow keys move the cursor from point to point; Escape shows all of the axis.
  #move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") {
      this.zoomed(null);
    }
    if (by === undefined || !this.uplot) {
      return;
    }
    event.preventDefault();
    const xs = this.uplot.data[0];
    const last = xs.length - 1;
    const now = this.uplot.cursor.idx ?? (by > 0 ? -1 : last + 1);
    const x = xs[Math.min(last, Math.max(0, now + by))];
    this.uplot.setCursor({ left: this.uplot.valToPos(x, "x"), top: HEIGHT / 2 });
    const values = this.curves.map((curve) => `${curve.label} ${numberText(nearest(curve.x, curve.y, x))}`);
    this.read.textContent = `${this.how.axisLabel} ${this.#shownX(x)}: ${values.join(", ")}`;
  }

  #shownX(x) {
    return this.how.axis === "time" ? durationText(x) : numberText(x);
  }

  // The legend has each curve's value at the cursor, or its last one.
  #label(x) {
    this.curves.forEach((curve, index) => {
      const value = x === null ? curve.info.last : nearest(curve.x, curve.y, x);
      this.values[index].textContent = value === null || value === undefined ? "–" : numberText(value);
    });
    this.where.textContent = x === null ? "" : `${this.how.axisLabel} ${this.#shownX(x)}`;
  }

  #describe() {
    this.values = this.curves.map(() => element("span", { className: "mc-number" }));
    this.where = element("li", { className: "text-body-secondary" });
    const items = this.curves.map((curve, index) =>
      element("li", {}, swatch(curve.colour), ` ${curve.label} `, this.values[index]),
    );
    this.legend.replaceChildren(...items, this.where);
    this.#label(null);
    const told = this.curves.slice(0, 5).map((curve) => `${curve.label}: last ${numberText(curve.info.last)}`);
    const more = this.curves.length > 5 ? `; ${this.curves.length - 5} more in the table below` : "";
    this.plot.setAttribute("aria-label", `${this.title} by ${this.how.axisLabel}. ${told.join("; ")}${more}. Arrow keys read points.`);
    this.rows.replaceChildren(...this.curves.map(rowOf));
  }
}

// A coloured line, as the curve is drawn.
export function swatch(index) {
  const line = element("span", { className: "mc-swatch", "aria-hidden": "true" });
  line.style.borderTopColor = colourOf(index);
  line.style.borderTopStyle = ["solid", "dashed", "dotted"][Math.floor(index / COLOURS.length) % 3];
  return line;
}

function rowOf({ label, info }) {
  const cells = [info.points, info.last, info.low, info.high].map((value) =>
    element("td", { className: "mc-number" }, value === null || value === undefined ? "" : numberText(value)),
  );
  return element("tr", {}, element("th", { scope: "row", className: "fw-normal" }, label), ...cells);
}

// The lines of one curve: itself and its extremes, or itself in pale and smoothed.
function layersOf(curve, { log, smoothing }, withBands) {
  const valid = log ? (values) => values.map((value) => (value > 0 ? value : null)) : (values) => values;
  const layer = (kind, y) => ({ key: curve.key, kind, colour: curve.colour, x: curve.x, y: valid(y) });
  if (smoothing) {
    return [layer("pale", curve.y), layer("line", smoothed(curve.y, smoothing))];
  }
  if (withBands && curve.low?.length) {
    return [layer("high", curve.high), layer("low", curve.low), layer("line", curve.y)];
  }
  return [layer("line", curve.y)];
}

function seriesOf({ kind, colour }) {
  const stroke = colourOf(colour);
  if (kind === "line") {
    return { stroke, width: 1.75, dash: dashOf(colour), points: { size: 4 } };
  }
  const pale = `${stroke}55`;
  return kind === "pale" ? { stroke: pale, width: 1, points: { show: false } } : { stroke: "#0000", width: 0, points: { show: false } };
}

function bandsOf(layers) {
  return layers.flatMap(({ kind, colour }, index) =>
    kind === "high" ? [{ series: [index + 1, index + 2], fill: `${colourOf(colour)}33` }] : [],
  );
}
