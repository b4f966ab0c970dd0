// The list of runs, live: filtered, sorted and cut into pages by the service. Ticked runs are compared below it.

import { ask, element, listen, tell, tellOf } from "../service.js";
import { columnsOf, offerColumns, wantedMetrics } from "./columns.js";
import { compare, newValues } from "./compare.js";
import { RunRow } from "./row.js";

const PAGE = 50;
const SOON_MS = 500;
const MOST_TICKED = 20;
const OPEN = ["queued", "starting", "running", "stopping", "failing", "requeuing", "yielding"];
const byId = (id) => document.getElementById(id);
const table = byId("runs");
const everyone = byId("everyone");
const rows = new Map();
const ticked = new Map();
let sort = { by: "created", order: "desc" };
let offset = 0;
let shown = { runs: [], total: 0, metrics: [] };
let stream = null;
let asked = 0;
let again = null;

const owners = () => (everyone?.checked ? { owner: "all" } : {});
const filters = () => [byId("search").value.trim(), byId("state").value, byId("tag").value, byId("favourites").checked];
const isFiltered = () => filters().some(Boolean);

function query() {
  const [search, state, tag, favourite] = filters();
  const states = state === "open" ? OPEN : [state].filter(Boolean);
  const given = Object.entries({ ...owners(), search, tag, favourite: favourite ? "yes" : "" }).filter(([, value]) => value);
  return [...given, ...states.map((one) => ["state", one]), ["sort", sort.by], ["order", sort.order], ["limit", PAGE], ["offset", offset]];
}

async function load() {
  const number = (asked += 1);
  const list = await ask("api/runs", { query: query() });
  if (number !== asked) {
    return; // the filters have changed meanwhile
  }
  if (offset && offset >= list.total) {
    offset = Math.max(0, Math.ceil(list.total / PAGE) - 1) * PAGE;
    await load();
    return;
  }
  shown = list;
  list.runs.filter((run) => ticked.has(run.id)).forEach((run) => ticked.set(run.id, { ...ticked.get(run.id), ...run }));
  show();
}

function reload() {
  clearTimeout(again);
  again = null;
  tellOf("runs", load());
}

function reloadSoon() {
  again ??= setTimeout(reload, SOON_MS);
}

function filtered() {
  offset = 0;
  reload();
}

function show() {
  offerColumns(shown.metrics, show);
  const columns = columnsOf(shown.metrics, Boolean(everyone?.checked));
  showHead(columns);
  const kept = document.activeElement;
  const wanted = shown.runs.map((run) => rowOf(run).show(run, columns, ticked.has(run.id)).node);
  const now = [...table.tBodies[0].rows];
  if (wanted.length !== now.length || wanted.some((node, at) => node !== now[at])) {
    table.tBodies[0].replaceChildren(...wanted);
    kept?.focus?.();
  }
  [...rows.keys()].filter((id) => !shown.runs.some((run) => run.id === id)).forEach((id) => rows.delete(id));
  showPaging();
}

function rowOf(run) {
  if (!rows.has(run.id)) {
    rows.set(run.id, new RunRow(run, { tick, tagged, changed: reloadSoon }));
  }
  return rows.get(run.id);
}

function showHead(columns) {
  const signature = JSON.stringify([columns.map(({ title }) => title), sort]);
  if (table.dataset.head === signature) {
    return;
  }
  table.dataset.head = signature;
  const focused = document.activeElement?.dataset?.sort;
  table.tHead.rows[0].replaceChildren(...columns.map(headOf));
  if (focused) {
    [...table.tHead.querySelectorAll("[data-sort]")].find((button) => button.dataset.sort === focused)?.focus();
  }
}

function headOf({ title, sortBy, hiddenTitle }) {
  if (!sortBy) {
    return element("th", { scope: "col" }, element("span", { className: hiddenTitle ? "visually-hidden" : "mc-sort" }, title));
  }
  const here = sort.by === sortBy;
  const arrow = here ? element("span", { "aria-hidden": "true" }, sort.order === "asc" ? " ↑" : " ↓") : "";
  const button = element("button", { type: "button", className: "btn btn-sm p-0 mc-sort", "data-sort": sortBy }, title, arrow);
  button.addEventListener("click", () => {
    const first = ["name", "owner", "state"].includes(sortBy) ? "asc" : "desc";
    const other = first === "asc" ? "desc" : "asc";
    sort = { by: sortBy, order: here && sort.order === first ? other : first };
    filtered();
  });
  const direction = here ? (sort.order === "asc" ? "ascending" : "descending") : "none";
  return element("th", { scope: "col", "aria-sort": direction }, button);
}

function showPaging() {
  const some = shown.runs.length > 0;
  table.hidden = !some;
  byId("empty").hidden = some;
  byId("empty-text").textContent = isFiltered() ? "No run is like this." : "No runs yet: put %%distribute on a cell of a notebook and run it.";
  byId("empty-hint").textContent = isFiltered()
    ? "Change the search or the filters above."
    : "Each run is listed here with what its ranks log by mc.log(step=step, loss=loss).";
  byId("paging").hidden = !some && ticked.size === 0;
  byId("range").textContent = some ? `${offset + 1} to ${offset + shown.runs.length} of ${shown.total}` : "";
  byId("previous").disabled = offset === 0;
  byId("next").disabled = offset + shown.runs.length >= shown.total;
  showTicked();
}

function showTicked() {
  byId("ticked").textContent = ticked.size ? `${ticked.size} ticked` : "Tick runs to compare them.";
  byId("untick").hidden = ticked.size === 0;
  byId("see").hidden = ticked.size === 0;
  compare([...ticked.values()]);
}

// Each ticked run keeps its colour until it is unticked.
function tick(run, on) {
  if (on && ticked.size >= MOST_TICKED) {
    tell("tick", new Error(`At most ${MOST_TICKED} runs are compared at once: untick one first.`));
    return false;
  }
  tell("tick", null);
  if (on) {
    const used = new Set([...ticked.values()].map((one) => one.colour));
    ticked.set(run.id, { ...run, colour: [...Array(MOST_TICKED).keys()].find((colour) => !used.has(colour)) });
  } else {
    ticked.delete(run.id);
  }
  history.replaceState(null, "", ticked.size ? `#${[...ticked.keys()].join(",")}` : window.location.pathname);
  rows.get(run.id)?.setColour(ticked.get(run.id)?.colour);
  showTicked();
  return on;
}

function tagged(tag) {
  showTag(tag);
  filtered();
}

function showTag(tag) {
  if (![...byId("tag").options].some((option) => option.value === tag)) {
    byId("tag").append(element("option", { value: tag }, tag));
  }
  byId("tag").value = tag;
}

async function loadTags() {
  const { tags } = await ask("api/run-tags", { query: owners() });
  const chosen = byId("tag").value;
  const options = tags.map(({ tag, runs }) => element("option", { value: tag }, `${tag} (${runs})`));
  byId("tag").replaceChildren(byId("tag").options[0], ...options);
  showTag(chosen);
}

// A job of the list has changed: show its state now, and what the service alone knows a moment later.
function jobChanged(job) {
  const at = shown.runs.findIndex((run) => run.id === job.id);
  if (at >= 0) {
    const { state, started_at, ended_at, world_size, nodes } = job;
    const error = job.error?.message ?? "";
    shown.runs[at] = { ...shown.runs[at], state, started_at, ended_at, world_size, nodes, error };
    show();
  }
  reloadSoon();
}

function metricsChanged({ run: id, metrics }) {
  const at = shown.runs.findIndex((run) => run.id === id);
  if (at >= 0) {
    shown.runs[at] = { ...shown.runs[at], metrics };
    const names = Object.keys(metrics).filter((name) => !shown.metrics.includes(name));
    shown.metrics = [...shown.metrics, ...names];
    show();
  }
  if (ticked.has(id)) {
    ticked.set(id, { ...ticked.get(id), metrics });
    showTicked();
    newValues();
  }
  if (wantedMetrics(shown.metrics).includes(sort.by)) {
    reloadSoon();
  }
}

function start() {
  stream?.close();
  tellOf("tags", loadTags());
  // Subscribe before loading the list, so that no change in between is lost.
  stream = listen("api/events", { query: owners(), open: reload, on: { job: jobChanged, metrics: metricsChanged } });
}

// The address names the ticked runs, so that a comparison can be bookmarked and sent.
async function tickNamed() {
  const named = window.location.hash.slice(1).split(",").filter((id) => /^\d{1,15}$/.test(id));
  const found = await Promise.allSettled(named.slice(0, MOST_TICKED).map((id) => ask(`api/runs/${id}`)));
  for (const { value } of found.filter(({ status }) => status === "fulfilled")) {
    tick(value.run, true);
  }
  show();
}

let typed;
byId("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(filtered, 250);
});
byId("filters").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["state", "tag", "favourites"]) {
  byId(id).addEventListener("change", filtered);
}
byId("previous").addEventListener("click", () => {
  offset = Math.max(0, offset - PAGE);
  reload();
});
byId("next").addEventListener("click", () => {
  offset += PAGE;
  reload();
});
byId("see").addEventListener("click", () => {
  byId("comparison").scrollIntoView();
  byId("comparison").focus({ preventScroll: true });
});
byId("untick").addEventListener("click", () => {
  [...ticked.values()].forEach((run) => tick(run, false));
  show();
  table.querySelector("input")?.focus();
});
everyone?.addEventListener("change", () => {
  offset = 0;
  start();
});
tellOf("named", tickNamed());
start();
