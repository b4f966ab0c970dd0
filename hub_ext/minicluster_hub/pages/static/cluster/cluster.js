// The page of the cluster, live: nodes and machines, the timeline, the curves.

import { loadReservations } from "../reservations.js";
import { ask, listen, tell } from "../service.js";
import { loadCharts, setMachines } from "./charts.js";
import { showMachines, showNodes } from "./nodes.js";
import { loadTimeline } from "./timeline.js";

const READ_MS = 2000;
const CURVES_MS = 10_000;
const TIMELINE_MS = 60_000;
const SOON_MS = 1000;

async function part(name, work) {
  try {
    await work();
    tell(name, null);
  } catch (error) {
    tell(name, error);
  }
}

async function readMachines() {
  const list = await ask("api/machines");
  showMachines(list);
  setMachines(list.machines);
}

async function loadAll() {
  part("timeline", loadTimeline);
  loadReservations();
  await part("nodes", async () => showNodes(await ask("api/nodes")));
  part("machines", readMachines).then(() => part("curves", loadCharts));
}

let soon = 0;
function timelineSoon() {
  clearTimeout(soon);
  soon = setTimeout(() => part("timeline", loadTimeline), SOON_MS);
}

function nodesChanged(list) {
  showNodes(list);
  part("machines", readMachines);
  loadReservations();
  timelineSoon();
}

// A page that nobody sees does not ask.
function repeat(name, work, pauseMs) {
  setInterval(() => document.visibilityState === "visible" && part(name, work), pauseMs);
}

listen("api/events", { open: loadAll, on: { nodes: nodesChanged, job: timelineSoon } });
repeat("machines", readMachines, READ_MS);
repeat("curves", loadCharts, CURVES_MS);
repeat("timeline", loadTimeline, TIMELINE_MS);
