// One served model, live: its figures, a form to try it, its replicas, versions and history.

import { address, ask, dayTime, element, tell, tellOf, url } from "./service.js";
import { exampleInput, perSecond, takes, time } from "./model_values.js";

const modelId = document.getElementById("model").dataset.model;
const path = `api/models/${modelId}`;
const AGAIN_MS = 1500;
const HIDDEN_MS = 15_000;
const OVER = ["stopping", "stopped"];
let details = null;

function part(id) {
  return document.getElementById(id);
}

function row(...cells) {
  return element("tr", {}, ...cells);
}

function cell(text, className = "") {
  return element("td", { className }, text);
}

function showHead({ model, versions, front }) {
  const over = OVER.includes(model.state);
  part("title").textContent = `Model ${model.name}`;
  part("state").textContent = model.state;
  part("stop").hidden = over;
  part("auto-off").hidden = over || !model.auto;
  part("back").hidden = over || before() === undefined;
  part("back").textContent = `Back to version ${before()?.number ?? ""}`;
  const who = model.is_open ? "Everybody" : model.shared ? "All users of the hub" : "Its owner";
  const auto = model.auto ? `; a job with a ${model.auto.maximize ? "higher" : "lower"} ${model.auto.metric} replaces it` : "";
  const answering = model.serving ? `Version ${model.serving} answers` : "No version answers";
  part("summary").textContent =
    `${model.owner}'s. ${answering}, on ${model.ready} of ${model.replicas} replicas. ${who} may ask it${auto}.`;
  const failed = versions.find((one) => one.number === model.active)?.error;
  const note = [model.note, failed && `Version ${model.active}: ${failed}`].filter(Boolean).join(" ");
  part("note").textContent = note;
  part("note").hidden = !note;
  part("front").textContent = front;
  showFigures(model.figures);
}

function showFigures({ per_s: rate, requests, errors, p50_s: p50, p99_s: p99 }) {
  part("per-second").textContent = perSecond(rate);
  part("requests").textContent = requests;
  part("errors").textContent = errors;
  part("p50").textContent = time(p50);
  part("p99").textContent = time(p99);
}

// The version before the one that is wanted, if there is one that comes up.
function before() {
  return details?.versions.find((one) => one.number < details.model.active && !one.error);
}

function showForm({ model, versions }) {
  const version = versions.find((one) => one.number === (model.serving || model.active));
  if (!version) {
    return;
  }
  const input = part("input");
  if (!input.dataset.filled) {
    input.dataset.filled = "yes";
    input.value = exampleInput(version.signature);
  }
  part("takes").textContent = takes(version.signature);
  part("address").textContent = new URL(`${address(model.path)}predict`, window.location.href).href;
  part("openapi").href = `${address(model.path)}openapi.json`;
  part("ask").disabled = model.state !== "serving";
}

function showReplicas({ model, replicas }) {
  const rows = replicas.map((one) =>
    row(
      element("th", { scope: "row" }, element("a", { href: `${url}runs/${one.job_id}` }, `${one.job_id}`)),
      cell(`${one.version}`),
      cell(one.phase),
      cell(one.node),
      cell(one.reason, "small"),
    ),
  );
  part("replicas").tBodies[0].replaceChildren(...rows);
  const count = part("count");
  if (document.activeElement !== count && count.dataset.shown !== `${model.replicas}`) {
    count.value = count.dataset.shown = `${model.replicas}`;
  }
  part("scale").disabled = OVER.includes(model.state);
}

function showVersions({ model, versions }) {
  part("metric").textContent = model.auto ? model.auto.metric : "Value";
  const rows = versions.map((one) => {
    const why = [one.reason, one.error && `It failed: ${one.error}`].filter(Boolean).join(". ");
    return row(
      element("th", { scope: "row" }, `${one.number}`),
      cell(dayTime(one.created_at), "text-nowrap"),
      cell(one.value === null ? "" : `${Number(one.value.toPrecision(6))}`),
      cell(why, "small"),
      element("td", {}, role(one.number, model)),
    );
  });
  part("versions").tBodies[0].replaceChildren(...rows);
}

function role(number, model) {
  if (number === model.serving) {
    return "answers";
  }
  if (OVER.includes(model.state)) {
    return "";
  }
  // One that does not come up is tried again by itself, but late: the button does so at once.
  if (number === model.active && model.state !== "failing") {
    return "starts";
  }
  const button = element("button", { type: "button", className: "btn btn-sm btn-outline-secondary" }, "Serve");
  button.setAttribute("aria-label", `Serve version ${number}`);
  button.addEventListener("click", () => change({ active_version: number }));
  return button;
}

async function showHistory() {
  const { events } = await ask(`${path}/events`);
  const rows = events.map((one) => row(cell(dayTime(one.at)), cell(one.kind), cell(one.text)));
  part("history").tBodies[0].replaceChildren(...rows);
}

function show(found) {
  const isNew = found.version !== details?.version;
  details = found;
  showHead(found);
  if (isNew) {
    showForm(found);
    showReplicas(found);
    showVersions(found);
    tellOf("history", showHistory());
  }
}

async function load() {
  show(await ask(path));
}

function change(json) {
  tellOf("change", ask(path, { method: "PATCH", json }).then(load));
}

async function tryIt() {
  const output = part("output");
  try {
    const input = JSON.parse(part("input").value);
    output.textContent = "…";
    const answer = await ask(`${details.model.path}predict`, { method: "POST", json: input });
    output.textContent = JSON.stringify(answer, null, 1);
  } catch (error) {
    output.textContent = error instanceof SyntaxError ? `This is no JSON: ${error.message}` : error.message;
  }
}

async function follow() {
  for (;;) {
    try {
      await load();
      tell("model", null);
    } catch (error) {
      tell("model", error);
    }
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? HIDDEN_MS : AGAIN_MS));
  }
}

part("ask").addEventListener("click", tryIt);
part("scale").addEventListener("click", () => change({ replicas: Number(part("count").value) }));
part("back").addEventListener("click", () => change({ active_version: before().number }));
part("auto-off").addEventListener("click", () => change({ auto_off: true }));
part("stop").addEventListener("click", () => {
  if (window.confirm("Serve this model no more?")) {
    tellOf("stop", ask(path, { method: "DELETE" }).then(load));
  }
});
follow();
