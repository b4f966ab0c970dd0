// The list of served models. It is read again when a job changes, since replicas are jobs, and for its figures.

import { ask, dayTime, element, listen, tellOf, url } from "./service.js";
import { perSecond, time } from "./model_values.js";

const table = document.getElementById("models");
const owner = table.dataset.admin ? { owner: "all" } : {};
const PAUSE_MS = 1000;
const AGAIN_MS = 5000;
let timer = null;

function line(model) {
  const { figures } = model;
  const number = (text) => element("td", { className: "text-end mc-number" }, text);
  return element(
    "tr",
    { "data-model": model.id },
    element("th", { scope: "row" }, element("a", { href: `${url}models/${model.id}` }, model.name)),
    element("td", {}, model.owner),
    element("td", {}, model.state),
    element("td", {}, `${model.serving || model.active}`),
    element("td", {}, `${model.ready} of ${model.replicas}`),
    number(perSecond(figures.per_s)),
    number(time(figures.p50_s)),
    number(time(figures.p99_s)),
    number(`${figures.errors}`),
    element("td", { className: "d-none d-md-table-cell text-nowrap" }, dayTime(model.created_at)),
  );
}

async function load() {
  const { models } = await ask("api/models", { query: owner });
  table.tBodies[0].replaceChildren(...models.map(line));
  document.getElementById("some").hidden = models.length === 0;
  document.getElementById("empty").hidden = models.length > 0;
}

function loadSoon() {
  timer ??= setTimeout(() => {
    timer = null;
    tellOf("models", load());
  }, PAUSE_MS);
}

tellOf("models", load());
listen("api/events", { query: owner, open: loadSoon, on: { job: loadSoon } });
setInterval(() => !document.hidden && loadSoon(), AGAIN_MS);
