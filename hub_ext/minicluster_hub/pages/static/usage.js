// Below the queue: hours by owner, and for admins last week's jobs under other policies.

import { address, ask, element, tell } from "./service.js";

const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];
const USAGE_MS = 60_000;
const button = document.getElementById("ask-what-if");

function duration(seconds) {
  const [unit, length] = UNITS.find(([, length]) => seconds >= 2 * length) ?? UNITS.at(-1);
  return `${Number((seconds / length).toPrecision(3))} ${unit}`;
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

function numbers(...texts) {
  return texts.map((text) => element("td", { className: "text-end" }, text));
}

function cells(figures) {
  return numbers(
    duration(figures.average_s),
    duration(figures.median_s),
    duration(figures.p99_s),
    duration(figures.longest_wait_s),
    figures.restarts.toFixed(2),
    figures.evenness.toFixed(2),
    percent(figures.busy),
  );
}

function policyRow(name, figures, trouble = "") {
  const told = figures ? cells(figures) : [element("td", { colSpan: 7, className: "mc-reason" }, trouble)];
  return element("tr", { "data-policy": name }, element("th", { scope: "row" }, name), ...told);
}

function showWhatIf(told) {
  const table = document.getElementById("what-if-rows");
  const more = told.left_out ? `, and ${told.left_out} that do not fit now or are older` : "";
  const jobs = told.jobs === 1 ? "1 job" : `${told.jobs} jobs`;
  const words = `Over ${jobs} of the last 7 days, without those that are not over yet${more}. Placement: ${told.placement}.`;
  document.getElementById("what-if-told").textContent = told.jobs ? words : "No job of the last 7 days is over yet.";
  const rows = told.policies.map((one) => policyRow(one.policy, one.figures, one.trouble));
  table.tBodies[0].replaceChildren(...(told.really ? [policyRow("what really happened", told.really), ...rows] : rows));
  table.hidden = !told.jobs;
  document.getElementById("what-if-assumed").textContent = told.jobs ? `Assumed: ${told.assumed.join("; ")}.` : "";
}

async function askWhatIf() {
  button.disabled = true;
  document.getElementById("what-if-told").textContent = "Computing: this takes some seconds …";
  try {
    showWhatIf(await ask("api/policy/what-if"));
    tell("what-if", null);
  } catch (error) {
    document.getElementById("what-if-told").textContent = "";
    tell("what-if", error);
  }
  button.disabled = false;
}

function usageRow(had) {
  const hours = [had.gpu_hours, had.server_gpu_hours, had.slot_hours].map((value) => value.toFixed(value < 10 ? 2 : 0));
  return element("tr", { "data-owner": had.owner }, element("td", {}, had.owner), ...numbers(...hours, `${had.jobs}`));
}

async function showUsage() {
  const table = document.getElementById("usage");
  try {
    const { rows } = await ask("api/usage");
    table.tBodies[0].replaceChildren(...rows.map(usageRow));
    table.hidden = rows.length === 0;
    document.getElementById("no-usage").hidden = rows.length > 0;
    tell("usage", null);
  } catch (error) {
    tell("usage", error);
  }
}

document.getElementById("usage-file").href = address("api/usage.csv");
button?.addEventListener("click", askWhatIf);
showUsage();
setInterval(showUsage, USAGE_MS);
