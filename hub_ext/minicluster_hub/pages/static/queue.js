// The active policy and the waiting jobs; admins activate another policy.

import { ask, dayTime, element, listen, tell } from "./service.js";
import { jobLink } from "./job_parts.js";
import { queueChanged } from "./my_queue.js";

const card = document.getElementById("policy");
const isAdmin = Boolean(card.dataset.admin);
const form = document.getElementById("choose");
const table = document.getElementById("waiting");
const waiting = new Map();
let report = null;

function showPolicy(told) {
  if (told.batch_queue) {
    return; // No policy orders the jobs: the page says who does.
  }
  report = told;
  const { choice, by, since } = told.in_force;
  const known = told.policies.find((one) => one.name === choice.policy);
  document.getElementById("active-policy").textContent = `${choice.policy}, ${choice.placement}`;
  document.getElementById("chosen").textContent = by ? `by ${by}, ${dayTime(since)}` : "by the cluster's settings";
  document.getElementById("summary").textContent = known?.summary ?? "This lab's own policy.";
  const trouble = document.getElementById("trouble");
  trouble.textContent = told.trouble;
  trouble.hidden = !told.trouble;
  if (isAdmin) {
    fill("policies", told.policies, choice.policy);
    fill("placements", told.placements, choice.placement);
    showOptions(choice.options);
  }
}

function fill(id, offered, chosen) {
  const options = offered.map((one) => element("option", { value: one.name, title: one.summary }, one.name));
  document.getElementById(id).replaceChildren(...options);
  document.getElementById(id).value = offered.some((one) => one.name === chosen) ? chosen : offered[0].name;
}

function showOptions(values = {}) {
  const chosen = report.policies.find((one) => one.name === document.getElementById("policies").value);
  const inputs = chosen.options.map((option) => input(option, values[option.name] ?? option.default));
  document.getElementById("options").replaceChildren(...inputs);
}

function input(option, value) {
  const id = `option-${option.name}`;
  const label = element("label", { className: "form-label small mb-0", htmlFor: id }, option.name);
  const common = { id, name: option.name, "data-kind": option.kind };
  const field =
    option.kind === "bool"
      ? element("input", { ...common, type: "checkbox", className: "form-check-input d-block", checked: value })
      : element("input", { ...common, type: "text", className: "form-control form-control-sm", value: `${value}` });
  return element("div", { className: "col-auto" }, label, field);
}

function chosenOptions() {
  const readers = { bool: (field) => field.checked, str: (field) => field.value };
  const number = (field) => (field.value.trim() === "" ? field.value : Number(field.value));
  const fields = [...document.querySelectorAll("#options input")];
  return Object.fromEntries(fields.map((field) => [field.name, (readers[field.dataset.kind] ?? number)(field)]));
}

async function choose(event) {
  event.preventDefault();
  event.submitter.disabled = true; // A trial of a custom policy takes a moment.
  try {
    const [policy, placement] = ["policies", "placements"].map((id) => document.getElementById(id).value);
    const choice = { policy, placement, options: chosenOptions() };
    showPolicy(await ask("api/policy", { method: "PUT", json: choice }));
    tell("policy", null);
  } catch (error) {
    tell("policy", error);
  } finally {
    event.submitter.disabled = false;
  }
}

function row(job) {
  return element(
    "tr",
    { "data-job": job.id },
    element("td", {}, `${job.queue_position ?? ""}`),
    element("td", {}, jobLink(job, `${job.id}`), ` ${job.name}`),
    element("td", {}, job.owner),
    element("td", { className: "mc-reason" }, job.reason),
    element("td", {}, dayTime(job.expected_start_at)),
  );
}

function show(job) {
  if (job.state === "queued") {
    waiting.set(job.id, job);
  } else {
    waiting.delete(job.id);
  }
  showQueue();
}

function showQueue() {
  queueChanged();
  const ordered = [...waiting.values()].sort((one, other) => one.queue_position - other.queue_position || one.id - other.id);
  table.tBodies[0].replaceChildren(...ordered.map(row));
  table.hidden = waiting.size === 0;
  document.getElementById("empty").hidden = waiting.size > 0;
}

async function load(query) {
  try {
    const [told, list] = await Promise.all([ask("api/policy"), ask("api/jobs", { query: { ...query, state: "open", limit: 1000 } })]);
    showPolicy(told);
    waiting.clear();
    list.jobs.filter((job) => job.state === "queued").forEach((job) => waiting.set(job.id, job));
    showQueue();
    tell("queue", null);
  } catch (error) {
    tell("queue", error);
  }
}

form?.addEventListener("submit", choose);
document.getElementById("policies")?.addEventListener("change", () => showOptions());
const query = isAdmin ? { owner: "all" } : {};
listen("api/events", { query, open: () => load(query), on: { job: show } });
