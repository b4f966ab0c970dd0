// One sweep, live: its trials as rows and as lines, and which parameters matter.

import { ask, element, tell, tellOf, url } from "./service.js";
import { drawLines } from "./sweep_lines.js";
import { duration, params, shown } from "./sweep_values.js";

const sweepId = document.getElementById("sweep").dataset.sweep;
const PAUSE_MS = 500;
const AGAIN_MS = 3000;
const IMPORTANCE_MS = 10_000;
const OVER = ["done", "stopped", "failed"];
let details = null;
let chosen = null;
let importanceAt = 0;

function part(id) {
  return document.getElementById(id);
}

function showHead({ sweep }) {
  part("title").textContent = `Sweep ${sweep.id}: ${sweep.name}`;
  part("state").textContent = sweep.state;
  part("stop").hidden = OVER.includes(sweep.state) || sweep.state === "stopping";
  const { metric, maximize, trials, search, prune } = sweep.settings;
  const counts = Object.entries(sweep.counts).map(([state, count]) => `${count} ${state}`);
  const goal = `${maximize ? "highest" : "lowest"} ${metric}`;
  const told = [`Search: ${search}, pruning: ${prune}, goal: ${goal}`, counts.join(", "), trials && `of ${trials} trials`];
  part("summary").textContent = `${told.filter(Boolean).join("; ")}; trials ran for ${duration(sweep.spent_s)} in all.`;
  const { best } = sweep;
  part("best").textContent = best
    ? `Best: ${metric} = ${shown(best.value)} in trial ${best.number}, with ${params(best.params) || "no parameters"}`
    : `No trial has a final ${metric} yet.`;
  const note = sweep.error || (OVER.includes(sweep.state) ? "" : sweep.note);
  part("note").textContent = note;
  part("note").hidden = !note;
}

function choose(number) {
  chosen = chosen === number ? null : number;
  showTrials(details);
}

function row(trial, names) {
  const seconds = trial.started_at ? (trial.ended_at ?? Date.now() / 1000) - trial.started_at : null;
  const made = element(
    "tr",
    { "data-trial": trial.number, tabIndex: 0, className: trial.number === chosen ? "table-active" : "" },
    element("th", { scope: "row" }, element("a", { href: `${url}runs/${trial.job}` }, `${trial.number}`)),
    element("td", {}, trial.state),
    element("td", {}, trial.value === null ? "" : shown(trial.value)),
    element("td", {}, trial.step === null ? "" : shown(trial.step)),
    ...names.map((name) => element("td", {}, name in trial.params ? shown(trial.params[name]) : "")),
    element("td", { className: "text-nowrap" }, seconds === null ? "" : duration(seconds)),
    element("td", { className: "small" }, trial.error),
  );
  made.addEventListener("click", (event) => {
    if (!event.target.closest("a")) {
      choose(trial.number);
    }
  });
  made.addEventListener("keydown", (event) => {
    if (event.target === made && ["Enter", " "].includes(event.key)) {
      event.preventDefault();
      choose(trial.number);
      part("trials").querySelector(`[data-trial="${trial.number}"]`)?.focus();
    }
  });
  return made;
}

function showTrials(found) {
  const names = Object.keys(found.spaces);
  const heads = ["Trial", "State", found.sweep.settings.metric, "Step", ...names, "Time", ""];
  const table = part("trials");
  table.tHead.rows[0].replaceChildren(...heads.map((head) => element("th", { scope: "col" }, head)));
  table.tBodies[0].replaceChildren(...[...found.trials].reverse().map((trial) => row(trial, names)));
  drawLines(part("lines"), found, chosen, choose);
}

async function showImportance(isOver) {
  if (!isOver && Date.now() - importanceAt < IMPORTANCE_MS) {
    return;
  }
  importanceAt = Date.now();
  const { shares } = await ask(`api/sweeps/${sweepId}/importance`);
  const lines = Object.entries(shares).map(([name, share]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", className: "fw-normal" }, name),
      element("td", {}, element("meter", { min: 0, max: 1, value: share }), ` ${Math.round(100 * share)} %`),
    ),
  );
  part("shares").replaceChildren(...lines);
  part("importance").hidden = lines.length === 0;
}

async function follow() {
  for (;;) {
    try {
      const have = details ? { have: details.version } : {};
      const found = await ask(`api/sweeps/${sweepId}`, { query: have });
      const isNew = found.version !== details?.version;
      details = found;
      if (isNew) {
        showHead(found);
        showTrials(found);
        tellOf("importance", showImportance(OVER.includes(found.sweep.state)));
      }
      tell("sweep", null);
      part("connection")?.setAttribute("hidden", "");
      if (OVER.includes(found.sweep.state)) {
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    } catch (error) {
      tell("sweep", error);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

part("stop").addEventListener("click", () => {
  if (window.confirm("Stop this sweep and its trials?")) {
    tellOf("stop", ask(`api/sweeps/${sweepId}/stop`, { method: "POST" }).then((sweep) => showHead({ sweep })));
  }
});
window.addEventListener("resize", () => details && drawLines(part("lines"), details, chosen, choose));
follow();
