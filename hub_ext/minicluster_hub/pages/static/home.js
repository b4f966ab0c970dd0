// What a user sees first: what runs, what waits and why, what is free, and the last runs. One request has all of it;
// events change it.

import { isOver, reasonText, runTimeCell, stateBadge, stopButton } from "./job_parts.js";
import { ask, dayTime, element, listen, loadBesideEvents, size, tell, url, user } from "./service.js";
import { addPoint, mainMetric, short, sparkline } from "./sparkline.js";

const MOST_RUNS = 8;
const FULL = 0.8;
const waiting = new Set(["queued", "requeuing"]);
const jobs = new Map(); // open jobs
const runs = new Map();
const curves = new Map(); // by run

const part = (id) => document.getElementById(id);
const runLink = (id, text) => element("a", { href: `${url}runs/${id}` }, text);
const newestFirst = (some) => [...some.values()].sort((one, other) => other.id - one.id);

function openJob(job) {
  const about = element("div", { className: "small text-body-secondary text-break" }, reasonText(job) || job.note || "");
  const head = element(
    "div",
    { className: "d-flex flex-wrap align-items-center gap-2" },
    element("span", { className: "text-break me-auto" }, runLink(job.id, `${job.id}`), ` ${job.name}`),
    runTimeCell(job),
    stateBadge(job),
    stopButton(job, change),
  );
  return element("li", { className: "list-group-item", "data-job": job.id }, head, about);
}

function showJobs() {
  const open = newestFirst(jobs);
  fill("running", open.filter((job) => !waiting.has(job.state)).map(openJob));
  fill("waiting", open.filter((job) => waiting.has(job.state)).map(openJob));
}

function fill(id, items) {
  part(id).replaceChildren(...items);
  part(`${id}-none`).hidden = items.length > 0;
}

function isFree(slot) {
  return slot.warm || (slot.owner === null && slot.job_id === null && slot.server === null);
}

function showNodes({ nodes }) {
  const gpus = nodes.some((node) => node.slots.some((slot) => slot.kind === "gpu"));
  const kind = gpus ? "gpu" : "cpu";
  const counted = nodes.map((node) => {
    const slots = node.slots.filter((slot) => slot.kind === kind);
    const usable = node.up && !node.closed;
    const count = (some) => some.reduce((total, slot) => total + slot.share, 0);
    return { node, all: count(slots), free: usable ? count(slots.filter(isFree)) : 0, usable };
  });
  const sum = (key) => counted.reduce((total, one) => total + one[key], 0);
  part("free").textContent = `${sum("free")} of ${sum("all")} ${gpus ? "GPUs" : "CPU slots"}`;
  part("free-nodes").replaceChildren(
    ...counted.map(({ node, all, free, usable }) =>
      element(
        "li",
        { className: "list-group-item d-flex gap-2", "data-node": node.name },
        element("span", { className: "text-break me-auto" }, node.name),
        element("span", { className: "mc-number" }, usable ? `${free} of ${all} free` : node.up ? "closed" : "down"),
      ),
    ),
  );
}

function lastValue(run) {
  const curve = curves.get(run.id);
  const last = curve && curve.value.findLast((value) => value !== null);
  return last === undefined ? "" : `${curve.name} ${short(last)}`;
}

function runRow(run) {
  const curve = curves.get(run.id);
  const name = element("div", { className: "text-break" }, runLink(run.id, `${run.id}`), ` ${run.name}`);
  const more = [run.notebook?.split("/").at(-1), ...(run.tags ?? [])].filter(Boolean).join(", ");
  return element(
    "tr",
    { "data-run": run.id },
    element("td", {}, name, element("div", { className: "small text-body-secondary text-break" }, more)),
    element("td", {}, stateBadge(run)),
    element("td", { className: "mc-spark-cell" }, curve ? sparkline(curve) : "", element("div", { className: "small" }, lastValue(run))),
    element("td", { className: "d-none d-md-table-cell" }, runTimeCell(run)),
    element("td", { className: "d-none d-md-table-cell text-nowrap" }, dayTime(run.created_at)),
  );
}

function showRuns() {
  const rows = newestFirst(runs).slice(0, MOST_RUNS).map(runRow);
  part("runs").tBodies[0].replaceChildren(...rows);
  part("last").hidden = rows.length === 0;
  part("welcome").hidden = rows.length > 0;
}

function showStorage({ used_bytes: used, limit_bytes: limit }) {
  const share = limit > 0 ? used / limit : 0;
  part("storage").hidden = share < FULL;
  part("storage-text").textContent = `Your storage is ${Math.round(share * 100)} % full: ${size(used)} of ${size(limit)}. `;
}

// A job changed, by an event or by a button.
function change(job) {
  if (job.owner !== user) {
    return;
  }
  if (!runs.has(job.id)) {
    loadBesideEvents(load); // events do not tell a run's tags
  }
  if (isOver(job)) {
    jobs.delete(job.id);
  } else {
    jobs.set(job.id, job);
  }
  runs.set(job.id, { ...runs.get(job.id), ...job, notebook: job.origin?.notebook ?? runs.get(job.id)?.notebook });
  for (const old of newestFirst(runs).slice(MOST_RUNS)) {
    runs.delete(old.id);
    curves.delete(old.id);
  }
  showJobs();
  showRuns();
}

function grow({ run, metrics }) {
  if (!runs.has(run)) {
    return;
  }
  const names = Object.keys(metrics);
  const name = curves.get(run)?.name ?? mainMetric(names);
  const last = metrics[name];
  if (!last) {
    return;
  }
  const curve = curves.get(run) ?? { name, step: [], value: [] };
  curves.set(run, curve);
  addPoint(curve, last.step, last.value);
  document.querySelector(`#runs tr[data-run="${run}"]`)?.replaceWith(runRow(runs.get(run)));
}

async function load() {
  try {
    const home = await ask("api/home");
    jobs.clear();
    runs.clear();
    curves.clear();
    home.jobs.forEach((job) => jobs.set(job.id, job));
    home.runs.forEach((run) => runs.set(run.id, run));
    home.curves.forEach((curve) => curves.set(curve.run, { name: curve.name, step: [...curve.step], value: [...curve.value] }));
    showJobs();
    showNodes(home.nodes);
    showRuns();
    showStorage(home.storage);
    part("content").hidden = false;
    tell("home", null);
  } catch (error) {
    tell("home", error);
  }
}

// Subscribed before the page is loaded, so that no change in between is lost.
listen("api/events", { open: load, on: { job: change, nodes: showNodes, metrics: grow } });
