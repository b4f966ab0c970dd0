// What the machines did: a chart for each kind of reading, a curve for each machine or GPU.

import uPlot from "../npm/uplot/dist/uPlot.esm.js";

import { ask, element, size } from "../service.js";

const place = document.getElementById("charts");
const part = document.getElementById("history-part");
const range = document.getElementById("history-range");
const chosen = document.getElementById("history-machine");

const POINTS = 300;
const HEIGHT = 170;
const AT_ONCE = 30;
const COLOURS = ["#1f77b4", "#e07b1f", "#2ca02c", "#d6456b", "#9467bd", "#17a2a8", "#b8860b", "#7f7f7f"];
const percent = (value) => `${Math.round(value)} %`;
const KINDS = [
  { name: "GPU use", field: /^gpu(\d+)_use_percent$/, text: percent, most: 100 },
  { name: "GPU memory", field: /^gpu(\d+)_memory_bytes$/, text: size },
  { name: "GPU temperature", field: /^gpu(\d+)_temperature_c$/, text: (value) => `${Math.round(value)} °C` },
  { name: "GPU power", field: /^gpu(\d+)_power_w$/, text: (value) => `${Math.round(value)} W` },
  { name: "CPU", field: /^cpu_percent$/, text: percent, most: 100 },
  { name: "Memory", field: /^memory_bytes$/, text: size },
  { name: "Network in", field: /^received_bytes_s$/, text: (value) => `${size(value)}/s` },
  { name: "Network out", field: /^sent_bytes_s$/, text: (value) => `${size(value)}/s` },
];

let machines = [];
const charts = new Map();

export function setMachines(list) {
  machines = list.filter((machine) => machine.fields.length > 0);
  part.hidden = machines.length === 0;
  const names = machines.map((machine) => machine.name);
  const known = [...chosen.options].slice(1).map((option) => option.value);
  if (names.join("\n") !== known.join("\n")) {
    const before = chosen.value;
    chosen.replaceChildren(chosen.options[0], ...names.map((name) => element("option", { value: name }, name)));
    chosen.value = names.includes(before) ? before : "";
    chosen.hidden = names.length < 2;
  }
}

async function history(machine, low, high) {
  const query = new URLSearchParams({ low, high, points: POINTS });
  for (const field of machine.fields.slice(0, 32)) {
    query.append("field", field);
  }
  return ask(`api/machines/${encodeURIComponent(machine.name)}/history`, { query });
}

export async function loadCharts() {
  const high = Math.ceil(Date.now() / 1000);
  const low = high - Number(range.value);
  const shown = machines.filter((machine) => ["", machine.name].includes(chosen.value)).slice(0, AT_ONCE);
  const histories = await Promise.all(shown.map((machine) => history(machine, low, high)));
  for (const kind of KINDS) {
    draw(kind, curvesOf(kind, histories), low, high);
  }
}

range.addEventListener("change", () => loadCharts().catch(reportError));
chosen.addEventListener("change", () => loadCharts().catch(reportError));

// [{ name, at, mean }] of one kind.
function curvesOf(kind, histories) {
  return histories.flatMap((one) =>
    one.fields
      .map((field) => ({ field, found: field.name.match(kind.field) }))
      .filter(({ found }) => found)
      .map(({ field, found }) => ({ name: found[1] === undefined ? one.name : `${one.name} GPU ${found[1]}`, at: one.at, mean: field.mean, step: one.step_s })),
  );
}

// All curves on one axis of time; where a machine was not read, there is a gap.
function table(curves) {
  const step = Math.max(...curves.map((curve) => curve.step));
  const first = Math.min(...curves.map((curve) => curve.at[0] ?? Infinity));
  const last = Math.max(...curves.map((curve) => curve.at.at(-1) ?? -Infinity));
  if (!(last >= first)) {
    return [[], ...curves.map(() => [])];
  }
  const count = Math.round((last - first) / step) + 1;
  const columns = curves.map((curve) => {
    const column = Array(count).fill(null);
    curve.at.forEach((at, index) => {
      column[Math.round((at - first) / step)] = curve.mean[index];
    });
    return column;
  });
  return [Array.from({ length: count }, (_, index) => first + index * step), ...columns];
}

function draw(kind, curves, low, high) {
  const names = curves.map((curve) => curve.name).join("\n");
  let chart = charts.get(kind.name);
  if (chart && chart.names !== names) {
    chart.plot.destroy();
    chart.box.remove();
    charts.delete(kind.name);
    chart = undefined;
  }
  if (curves.length === 0) {
    return;
  }
  if (!chart) {
    chart = make(kind, curves, names);
    charts.set(kind.name, chart);
  }
  chart.span.splice(0, 2, low, high);
  chart.plot.setData(table(curves));
  chart.plot.root.setAttribute("aria-label", `${kind.name}: ${curves.map((curve) => latest(kind, curve)).join(", ")}`);
}

function latest(kind, curve) {
  const value = curve.mean.findLast((one) => one !== null);
  return `${curve.name} ${value === undefined ? "not read" : kind.text(value)}`;
}

function make(kind, curves, names) {
  const title = element("h3", { className: "h6 mb-0" }, kind.name);
  const box = element("div", { className: "col-md-6 mc-chart" }, title);
  // In the order of the kinds, whichever appears first.
  const index = KINDS.indexOf(kind);
  box.dataset.order = String(index);
  place.insertBefore(box, [...place.children].find((other) => Number(other.dataset.order) > index) ?? null);
  const span = [0, 1];
  const plot = new uPlot(options(kind, curves, span, box.clientWidth - 24), [[], ...curves.map(() => [])], box);
  plot.root.tabIndex = 0; // For readers of the screen, which read its label.
  plot.root.setAttribute("role", "img");
  new ResizeObserver(() => plot.setSize({ width: Math.max(200, box.clientWidth - 24), height: HEIGHT })).observe(box);
  return { plot, box, names, span };
}

function options(kind, curves, span, width) {
  const text = () => getComputedStyle(document.body).color;
  const line = () => getComputedStyle(document.body).getPropertyValue("--bs-border-color");
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui", size: 84 };
  return {
    width: Math.max(200, width),
    height: HEIGHT,
    series: [{}, ...curves.map((curve, index) => series(kind, curve, index))],
    axes: [{ ...axis, size: 30 }, { ...axis, values: (_plot, values) => values.map(kind.text) }],
    scales: { x: { range: () => span }, y: { range: (_plot, _low, high) => [0, kind.most ?? Math.max(1, (high ?? 1) * 1.05)] } },
    cursor: { drag: { x: false, y: false }, points: { size: 5 } },
    legend: { show: true },
  };
}

function series(kind, curve, index) {
  return {
    label: curve.name,
    stroke: COLOURS[index % COLOURS.length],
    width: 1.5,
    dash: index >= COLOURS.length ? [6, 3] : undefined,
    points: { show: false },
    value: (_plot, value) => (value === null || value === undefined ? "" : kind.text(value)),
  };
}

// Canvases have no style sheets: they are drawn anew with the colours of the other theme.
new MutationObserver(() => charts.forEach((chart) => chart.plot.redraw(false))).observe(document.documentElement, { attributeFilter: ["data-bs-theme"] });
