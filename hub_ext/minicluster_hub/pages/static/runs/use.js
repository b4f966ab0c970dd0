// What each rank used of CPU, memory and its GPU, over the run's time: below the curves, on the same axis.

import { ask, jobId } from "../service.js";
import { Chart } from "./chart.js";

const POINTS = 400;
const MOST_RANKS = 20; // curves of one chart
const GB = 1e9;
const MB = 1e6;
const KINDS = [
  { field: "gpu_percent", title: "GPU use (%)" },
  { field: "gpu_memory_bytes", title: "GPU memory (GB)", unit: GB },
  { field: "cpu_percent", title: "CPU (% of a core)" },
  { field: "memory_bytes", title: "Memory (GB)", unit: GB },
  { field: "received_bytes_s", title: "Received by the node's container (MB/s)", unit: MB },
  { field: "sent_bytes_s", title: "Sent by the node's container (MB/s)", unit: MB },
];
const byId = (id) => document.getElementById(id);
const charts = new Map();
let range = null;
let found = null;

export async function showUse() {
  found = await ask(`api/runs/${jobId}/readings`, { query: { points: POINTS } });
  draw();
}

function draw() {
  byId("use").hidden = found.ranks.length === 0;
  const drawn = KINDS.map((kind) => [kind, found.ranks.slice(0, MOST_RANKS).flatMap((rank) => curveOf(rank, kind))]).filter(
    ([kind, curves]) => curves.length || charts.has(kind.field),
  );
  const nodes = drawn.map(([kind]) => chartOf(kind).node);
  // Charts that are there stay, and keep the focus. They are in the page before they are drawn: its style has colours.
  if (nodes.length !== byId("use-charts").children.length) {
    byId("use-charts").replaceChildren(...nodes);
  }
  for (const [kind, curves] of drawn) {
    chartOf(kind).show(curves, { log: false, smoothing: 0, axis: "time", axisLabel: "time", range });
  }
  const left = found.ranks.length - MOST_RANKS;
  byId("use-left").hidden = left <= 0;
  byId("use-left").textContent = `The first ${MOST_RANKS} of ${found.ranks.length} ranks.`;
}

function chartOf({ field, title }) {
  if (!charts.has(field)) {
    const zoomed = (wanted) => {
      range = wanted;
      draw();
    };
    charts.set(field, new Chart(title, { zoomed, sync: "mc-use" }));
  }
  return charts.get(field);
}

// One curve, or none if the rank has no such readings.
function curveOf({ rank, at, fields }, { field, unit = 1 }) {
  const history = fields.find((one) => one.name === field);
  const inUnit = (values) => values.map((value) => (value === null ? null : value / unit));
  const y = history ? inUnit(history.mean) : [];
  const values = y.filter((value) => value !== null);
  if (!values.length) {
    return [];
  }
  const x = at.map((time) => time - (found.started_at ?? at[0]));
  const info = { points: values.length, last: values.at(-1), low: Math.min(...values), high: Math.max(...values) };
  return [{ key: `rank-${rank}`, label: `rank ${rank}`, colour: rank, x, y, low: [], high: [], info }];
}
