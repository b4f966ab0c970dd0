// The list of sweeps. It is read again when a job changes, since trials are jobs.

import { ask, dayTime, element, listen, tellOf, url } from "./service.js";
import { params, shown } from "./sweep_values.js";

const table = document.getElementById("sweeps");
const owner = table.dataset.admin ? { owner: "all" } : {};
const PAUSE_MS = 1000;
let timer = null;

function line(sweep) {
  const count = Object.values(sweep.counts).reduce((sum, one) => sum + one, 0);
  const total = sweep.settings.trials ? ` of ${sweep.settings.trials}` : "";
  const { best } = sweep;
  return element(
    "tr",
    { "data-sweep": sweep.id },
    element("th", { scope: "row" }, element("a", { href: `${url}sweeps/${sweep.id}` }, `${sweep.id} ${sweep.name}`)),
    element("td", {}, sweep.owner),
    element("td", {}, sweep.state),
    element("td", {}, `${count}${total}`),
    element("td", {}, best ? `${sweep.settings.metric} ${shown(best.value)}` : ""),
    element("td", { className: "small" }, best ? params(best.params) : sweep.error),
    element("td", { className: "d-none d-md-table-cell text-nowrap" }, dayTime(sweep.created_at)),
  );
}

async function load() {
  const { sweeps } = await ask("api/sweeps", { query: owner });
  table.tBodies[0].replaceChildren(...sweeps.map(line));
  document.getElementById("some").hidden = sweeps.length === 0;
  document.getElementById("empty").hidden = sweeps.length > 0;
}

function loadSoon() {
  timer ??= setTimeout(() => {
    timer = null;
    tellOf("sweeps", load());
  }, PAUSE_MS);
}

tellOf("sweeps", load());
listen("api/events", { query: owner, open: loadSoon, on: { job: loadSoon } });
