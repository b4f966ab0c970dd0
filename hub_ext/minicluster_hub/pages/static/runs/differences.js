// What differs between ticked runs: their facts side by side, and their code line by line (by jsdiff).

import { structuredPatch } from "../npm/diff/libesm/patch/create.js";
import { ask, element, tell, url } from "../service.js";
import { swatch } from "./chart.js";
import { factsOf } from "./facts.js";

const CONTEXT = 3;
const DIFF_MS = 2000;
const byId = (id) => document.getElementById(id);
const known = new Map();
let shown = [];
let first = null;

byId("show-equal").addEventListener("change", draw);

// runs: two or more, each with its colour.
export async function showDifferences(runs) {
  shown = runs;
  try {
    await Promise.all(runs.filter((run) => !known.has(run.id)).map(load));
    tell("differences", null);
  } catch (error) {
    tell("differences", error);
  }
  if (shown === runs) {
    draw();
  }
}

async function load({ id }) {
  known.set(id, await ask(`api/runs/${id}`));
}

function draw() {
  const runs = shown.filter((run) => known.has(run.id)).sort((one, other) => one.id - other.id);
  if (runs.length < 2) {
    return;
  }
  const table = byId("difference-table");
  const heads = runs.map((run) => {
    const link = element("a", { href: `${url}runs/${run.id}` }, `${run.id} ${run.name}`);
    return element("th", { scope: "col" }, swatch(run.colour), " ", link);
  });
  table.tHead.rows[0].replaceChildren(element("td", {}), ...heads);
  const facts = runs.map((run) => factsOf(known.get(run.id)));
  const rows = facts[0].map(([title], at) => [title, facts.map((one) => one[at][1])]);
  const wanted = rows.filter(([, texts]) => (byId("show-equal").checked ? texts.some(Boolean) : new Set(texts).size > 1));
  table.tBodies[0].replaceChildren(...wanted.map(rowOf));
  table.hidden = wanted.length === 0;
  const sources = new Set(runs.map(codeOf));
  byId("no-differences").hidden = wanted.length > 0 || sources.size > 1;
  drawCode(runs, sources);
}

const codeOf = (run) => known.get(run.id).origin.source;

function rowOf([title, texts]) {
  const differs = new Set(texts).size > 1;
  const cells = texts.map((text) => element("td", { className: "mc-lines" }, text || "–"));
  const heading = element("th", { scope: "row" }, title, differs ? "" : element("span", { className: "fw-normal text-body-secondary" }, " (equal)"));
  return element("tr", {}, heading, ...cells);
}

// The code of one run that the user picks, against that of each other one.
function drawCode(runs, sources) {
  const place = byId("code-differences");
  if (sources.size < 2) {
    const text = sources.has("") ? "Their code is not remembered." : "Their code is equal.";
    place.replaceChildren(element("p", { className: "text-body-secondary mb-0" }, text));
    return;
  }
  const base = runs.find((run) => run.id === first) ?? runs[0];
  const picker = element("select", { className: "form-select form-select-sm w-auto d-inline-block", id: "code-base" });
  picker.append(...runs.map((run) => element("option", { value: run.id, selected: run === base }, `${run.id} ${run.name}`)));
  picker.addEventListener("change", () => {
    first = Number(picker.value);
    drawCode(runs, sources);
    byId("code-base").focus();
  });
  const label = element("label", { className: "fw-semibold", htmlFor: "code-base" }, "Code, compared with that of run");
  const others = runs.filter((run) => run !== base);
  place.replaceChildren(element("p", { className: "mb-2" }, label, " ", picker), ...others.map((run) => codeDifference(base, run)));
}

function codeDifference(base, run) {
  const [before, after] = [base, run].map((one) => withEnd(codeOf(one)));
  const title = element("summary", {}, swatch(run.colour), ` ${run.id} ${run.name}`, before === after ? ": the same code" : "");
  const made = element("details", { open: before !== after, className: "mb-2" }, title);
  if (before !== after) {
    made.append(element("pre", { className: "mc-code border rounded p-2", tabIndex: 0 }, ...patchLines(before, after)));
  }
  return made;
}

const withEnd = (text) => (text && !text.endsWith("\n") ? `${text}\n` : text);

function patchLines(before, after) {
  const patch = structuredPatch("", "", before, after, "", "", { context: CONTEXT, timeout: DIFF_MS });
  if (!patch) {
    return ["Too much differs to show it line by line."];
  }
  return patch.hunks.flatMap((hunk) => [
    element("span", { className: "d-block mc-hunk" }, `Line ${hunk.newStart}`),
    ...hunk.lines.map((line) => element("span", { className: `d-block ${{ "+": "mc-added", "-": "mc-removed" }[line[0]] ?? ""}` }, line)),
  ]);
}
