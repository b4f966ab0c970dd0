// A run's page, besides what job.js shows of its job: curves, labels, code, environment.

import { address, ask, element, jobId, size, tell, tellOf, url } from "../service.js";
import { changes } from "../job.js"; // imported, so that its first event comes when this module listens
import { copyLine } from "../job_parts.js";
import { Curves } from "./curves.js";
import { factsOf } from "./facts.js";
import { setLabels, tagsOf } from "./labels.js";
import { showMedia } from "./media.js";
import { saveParquet } from "./parquet.js";
import { showSpeed } from "./speed.js";
import { showUse } from "./use.js";

const LOOK_MS = 3000;
const RANKS_AT_ONCE = 16;
const byId = (id) => document.getElementById(id);
const mine = byId("run").dataset.mine === "yes";
const curves = new Curves();
let startedAt = null;
let again = null;
let run = null;

async function showCurves() {
  const { series, dropped } = await ask(`api/runs/${jobId}/series`);
  const names = series.map((one) => one.name);
  offerRanks([...new Set(series.map((one) => one.rank))].sort((one, other) => one - other));
  curves.show([{ id: Number(jobId), label: "value", colour: 0, started_at: startedAt }], names);
  byId("exports").hidden = series.length === 0;
  byId("dropped").hidden = dropped === 0;
  byId("dropped").textContent = `${dropped} points are in no curve: they are beyond what is remembered of one run.`;
}

// Of each metric the lowest rank is shown that logs it, unless the user picks one, or all.
function offerRanks(ranks) {
  const picker = byId("curve-rank");
  const chosen = picker.value;
  const signature = ranks.join();
  byId("curve-rank-box").hidden = ranks.length < 2;
  if (picker.dataset.ranks === signature) {
    return;
  }
  picker.dataset.ranks = signature;
  const all = ranks.slice(0, RANKS_AT_ONCE).join();
  const offered = [["", "The lowest"], [all, ranks.length > RANKS_AT_ONCE ? `The first ${RANKS_AT_ONCE}` : "All"], ...ranks.map((rank) => [String(rank), `Rank ${rank}`])];
  picker.replaceChildren(...offered.map(([value, text]) => element("option", { value }, text)));
  picker.value = offered.some(([value]) => value === chosen) ? chosen : "";
}

byId("curve-rank").addEventListener("change", () => {
  const { value } = byId("curve-rank");
  curves.ranks = value ? value.split(",").map(Number) : null;
  curves.reload();
});

// Ranks log many times a second; a look from time to time is enough.
function lookAgain() {
  again ??= setTimeout(() => {
    again = null;
    tellOf("series", showCurves().then(() => curves.update()));
    showWhatRanksSent();
  }, LOOK_MS);
}

function showWhatRanksSent() {
  tellOf("media", showMedia());
  tellOf("speed", showSpeed());
  tellOf("use", showUse());
}

async function showDetails() {
  const details = await ask(`api/runs/${jobId}`);
  showLabels(details.run);
  showRelated(details.run);
  const rows = factsOf(details).filter(([, text]) => text);
  byId("facts-rows").replaceChildren(...rows.map(([title, text]) =>
    element("tr", {}, element("th", { scope: "row" }, title), element("td", { className: "mc-lines" }, text)),
  ));
  const { source, names } = details.origin;
  byId("source").textContent = source;
  byId("source").hidden = !source;
  byId("no-code").hidden = Boolean(source);
  byId("names").hidden = names.length === 0;
  byId("names-summary").textContent = `${names.length} ${names.length === 1 ? "name" : "names"} sent with the cell`;
  byId("name-rows").replaceChildren(...names.map((name) => {
    const cells = [element("code", {}, name.name), name.type, element("span", { className: "mc-number" }, name.size_bytes === null ? "" : size(name.size_bytes))];
    return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
  }));
}

function showLabels(found) {
  run = found;
  byId("star").textContent = run.favourite ? "★" : "☆";
  byId("star").setAttribute("aria-pressed", String(run.favourite));
  byId("star").disabled = !mine;
  byId("tags").replaceChildren(...run.tags.map((tag) => element("span", { className: "badge text-bg-secondary me-1" }, tag)));
  byId("run-note").textContent = run.note;
  byId("run-note").hidden = !run.note;
}

function showRelated({ rerun_of: before, sweep }) {
  const parts = [];
  if (before !== null) {
    parts.push("repeats ", element("a", { href: `${url}runs/${before}` }, `run ${before}`));
  }
  if (sweep !== null) {
    const link = element("a", { href: `${url}sweeps/${sweep}` }, `sweep ${sweep}`);
    parts.push(parts.length ? " · " : "", "a trial of ", link);
  }
  byId("related").replaceChildren(...parts);
}

function edit(open) {
  byId("labels").hidden = !open;
  byId("edit-labels").setAttribute("aria-expanded", String(open));
  if (open) {
    byId("edit-tags").value = run.tags.join(", ");
    byId("edit-note").value = run.note;
  }
  byId(open ? "edit-tags" : "edit-labels").focus();
}

async function save(labels) {
  showLabels(await setLabels(jobId, labels));
}

byId("star").addEventListener("click", () => tellOf("labels", save({ favourite: !run.favourite })));
byId("edit-labels")?.addEventListener("click", () => run && edit(byId("labels").hidden));
byId("cancel-labels")?.addEventListener("click", () => edit(false));
byId("labels")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await save({ tags: tagsOf(byId("edit-tags").value), note: byId("edit-note").value });
    tell("labels", null);
    edit(false);
  } catch (error) {
    tell("labels", error);
  }
});
byId("again")?.addEventListener("click", () => {
  byId("again-line").hidden = !byId("again-line").hidden;
  byId("again-line").replaceChildren("In a notebook: ", copyLine(`%distribute rerun ${jobId}`));
});
byId("export-csv").href = address(`api/runs/${jobId}/points`, { format: "csv" });
byId("export-json").href = address(`api/runs/${jobId}/points`, { format: "json" });
byId("export-parquet").addEventListener("click", async () => {
  byId("export-parquet").disabled = true;
  try {
    await saveParquet(jobId);
    tell("parquet", null);
  } catch (error) {
    tell("parquet", error);
  } finally {
    byId("export-parquet").disabled = false;
  }
});

changes.addEventListener("records", lookAgain);
changes.addEventListener("job", ({ detail: job }) => {
  startedAt = job.started_at;
  tellOf("series", showCurves());
  showWhatRanksSent();
  tellOf("details", showDetails());
});
