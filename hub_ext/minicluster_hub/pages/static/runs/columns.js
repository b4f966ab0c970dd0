// The columns of the list of runs: fixed ones, and the metrics that the user chose. The browser remembers the choice.

import { element } from "../service.js";

const REMEMBERED = "minicluster-run-columns";
const BY_DEFAULT = 4;
const menu = document.getElementById("columns");
let chosen = JSON.parse(localStorage.getItem(REMEMBERED) ?? "null");
let offered = "";

// The metrics that are columns; without a choice, the most common ones.
export function wantedMetrics(metrics) {
  return chosen ?? metrics.slice(0, BY_DEFAULT);
}

// Columns: { title, sortBy (a name of api/runs; none: not sortable), kind, metric, hiddenTitle }.
export function columnsOf(metrics, withOwner) {
  const fixed = (kind, title, sortBy, hiddenTitle = false) => ({ kind, title, sortBy, hiddenTitle });
  return [
    fixed("tick", "Compare", null, true),
    fixed("favourite", "Favourite", null, true),
    fixed("name", "Name", "name"),
    ...(withOwner ? [fixed("owner", "Owner", "owner")] : []),
    fixed("state", "State", "state"),
    fixed("created", "When", "created"),
    fixed("duration", "Duration", "duration"),
    fixed("gpus", "GPUs", null),
    ...wantedMetrics(metrics).map((metric) => ({ kind: "metric", title: metric, sortBy: metric, metric })),
  ];
}

// Offer the metrics of this page, and chosen ones that it lacks. changed(): called after each choice.
export function offerColumns(metrics, changed) {
  const names = [...new Set([...metrics, ...(chosen ?? [])])].sort();
  const signature = JSON.stringify([names, wantedMetrics(metrics)]);
  if (signature === offered) {
    return;
  }
  offered = signature;
  const focused = document.activeElement?.id;
  const boxes = names.map((name, at) => boxOf(name, at, metrics, changed));
  menu.replaceChildren(...(boxes.length ? boxes : [element("span", { className: "text-body-secondary" }, "No metrics yet.")]));
  if (focused?.startsWith("column-")) {
    document.getElementById(focused)?.focus();
  }
}

function boxOf(name, at, metrics, changed) {
  const checked = wantedMetrics(metrics).includes(name);
  const box = element("input", { type: "checkbox", className: "form-check-input", id: `column-${at}`, checked });
  box.addEventListener("change", () => {
    const others = wantedMetrics(metrics).filter((other) => other !== name);
    chosen = box.checked ? [...others, name] : others;
    localStorage.setItem(REMEMBERED, JSON.stringify(chosen));
    changed();
  });
  const label = element("label", { className: "form-check-label text-break", htmlFor: box.id }, name);
  return element("div", { className: "form-check" }, box, label);
}
