// A run's page, besides what job.js shows of its job: curves, labels, code, environment.

import { address, ask, jobId, tellOf } from "../service.js";
import { changes } from "../job.js";
import { Curves } from "./curves.js";

const LOOK_MS = 3000;
const byId = (id) => document.getElementById(id);
const curves = new Curves();
let startedAt = null;
let again = null;

async function showCurves() {
  const { series, dropped } = await ask(`api/runs/${jobId}/series`);
  const names = series.map((one) => one.name);
  curves.show([{ id: Number(jobId), label: "value", colour: 0, started_at: startedAt }], names);
  byId("exports").hidden = series.length === 0;
  byId("dropped").hidden = dropped === 0;
  byId("dropped").textContent = `${dropped} points are in no curve: they are beyond what is remembered of one run.`;
}

// Ranks log many times a second; a look from time to time is enough.
function lookAgain() {
  again ??= setTimeout(() => {
    again = null;
    tellOf("series", showCurves().then(() => curves.reload()));
  }, LOOK_MS);
}

changes.addEventListener("records", lookAgain);
changes.addEventListener("job", ({ detail: job }) => {
  startedAt = job.started_at;
  tellOf("series", showCurves());
});
byId("export-csv").href = address(`api/runs/${jobId}/points`, { format: "csv" });
byId("export-json").href = address(`api/runs/${jobId}/points`, { format: "json" });
