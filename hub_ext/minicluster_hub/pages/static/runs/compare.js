// Ticked runs over one another, and what differs between them.

import { Curves } from "./curves.js";
import { showDifferences } from "./differences.js";

const byId = (id) => document.getElementById(id);
const curves = new Curves();
curves.emptyText = "These runs have logged no metrics.";
let compared = "";

export function compare(runs) {
  byId("comparison").hidden = runs.length === 0;
  byId("differences").hidden = runs.length < 2;
  const lines = runs.map((run) => ({ id: run.id, label: `${run.id} ${run.name}`, colour: run.colour, started_at: run.started_at }));
  curves.show(lines, runs.flatMap((run) => Object.keys(run.metrics)));
  const signature = runs.map((run) => run.id).join();
  if (signature !== compared) {
    compared = signature;
    showDifferences(runs);
  }
}

// A compared run has new values.
export function newValues() {
  curves.refresh();
}
