// The list of jobs, live.

import { ask, element, listen, tell, user } from "./service.js";
import { attachLine, isOver, jobLink, reasonText, runTimeCell, stateBadge, stopButton } from "./job_parts.js";

const LIMIT = 100;
const table = document.getElementById("jobs");
const empty = document.getElementById("empty");
const everyone = document.getElementById("everyone");
const jobs = new Map();
let stream = null;

function row(job) {
  const name = element("div", {}, jobLink(job, `${job.id}`), ` ${job.name}`);
  const reason = element("div", { className: "small text-body-secondary mc-reason" }, reasonText(job));
  const nodes = element("div", { className: "small text-body-secondary" }, job.nodes.join(", "));
  const actions = element("td", { className: "text-end text-nowrap" }, jobLink(job, "Log"), " ");
  if (!isOver(job)) {
    actions.append(stopButton(job, show));
  }
  return element(
    "tr",
    { "data-job": job.id },
    element("td", {}, name),
    element("td", { className: "owner", hidden: !everyone?.checked }, job.owner),
    element("td", {}, stateBadge(job), reason),
    element("td", { className: "mc-number" }, job.world_size ? `${job.world_size}` : "", nodes),
    element("td", {}, runTimeCell(job)),
    element("td", {}, job.owner === user ? attachLine(job) : ""),
    actions,
  );
}

function show(job) {
  const before = table.querySelector(`tr[data-job="${job.id}"]`);
  const body = table.tBodies[0];
  jobs.set(job.id, job);
  if (before) {
    before.replaceWith(row(job));
    return;
  }
  const older = [...body.rows].find((other) => Number(other.dataset.job) < job.id);
  body.insertBefore(row(job), older ?? null);
  while (body.rows.length > LIMIT) {
    jobs.delete(Number(body.lastElementChild.dataset.job));
    body.lastElementChild.remove();
  }
  showTable();
}

function showTable() {
  table.hidden = jobs.size === 0;
  empty.hidden = jobs.size > 0;
}

async function load(query) {
  try {
    const list = await ask("api/jobs", { query: { ...query, limit: LIMIT } });
    jobs.clear();
    table.tBodies[0].replaceChildren();
    list.jobs.forEach(show);
    showTable();
    tell("jobs", null);
  } catch (error) {
    tell("jobs", error);
  }
}

function start() {
  stream?.close();
  const query = everyone?.checked ? { owner: "all" } : {};
  table.tHead.querySelector(".owner").hidden = !everyone?.checked;
  // Subscribe before loading the list, so that no change in between is lost.
  stream = listen("api/events", { query, open: () => load(query), on: { job: show } });
}

everyone?.addEventListener("change", start);
start();
