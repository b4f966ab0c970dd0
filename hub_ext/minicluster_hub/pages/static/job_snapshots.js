// A job's snapshots; loaded again when the job changes, and from time to time while the page is visible.

import { address, ask, element, jobId, size, tellOf } from "./service.js";
import { clockTime } from "./job_parts.js";

const LOOK_EACH_MS = 15_000;

export async function showSnapshots() {
  const { snapshots } = await ask(`api/jobs/${jobId}/snapshots`);
  document.getElementById("snapshots").hidden = !snapshots.length;
  document.getElementById("snapshot-rows").replaceChildren(...snapshots.map(row));
}

function row(snapshot) {
  const file = address(`api/jobs/${jobId}/snapshots/${snapshot.step}`);
  const parts = Array.from({ length: snapshot.parts }, (_, part) =>
    element("a", { href: part ? `${file}?part=${part}` : file }, snapshot.parts > 1 ? `Part ${part} ` : "Download"),
  );
  const cells = [
    snapshot.step,
    snapshot.attempt,
    size(snapshot.size_bytes),
    clockTime(snapshot.created_at),
    element("span", {}, ...parts),
  ];
  return element("tr", {}, ...cells.map((cell) => element("td", {}, cell instanceof Node ? cell : String(cell))));
}

setInterval(() => {
  if (!document.hidden) {
    tellOf("snapshots", showSnapshots());
  }
}, LOOK_EACH_MS);
