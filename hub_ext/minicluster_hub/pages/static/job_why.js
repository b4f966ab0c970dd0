// Why a running job is stuck: the button loads the stacks of its ranks.

import { ask, element, jobId, tell } from "./service.js";

const STATES = {
  stopped: "stopped by a signal",
  kernel: "held inside the kernel",
  silent: "runs, but does not answer",
  starting: "still starting",
  ended: "its cell is over",
  away: "its node does not answer",
};
const byId = (id) => document.getElementById(id);

// Shows the service's note while the job runs, and the button for more.
export function showWhy(job) {
  byId("note").textContent = job.note;
  byId("note").hidden = !job.note;
  byId("ask-why").hidden = job.state !== "running";
  byId("why").hidden = byId("why").hidden || job.state !== "running";
}

byId("ask-why").addEventListener("click", async () => {
  byId("ask-why").disabled = true;
  try {
    show(await ask(`api/jobs/${jobId}/why`));
    tell("why", null);
  } catch (error) {
    tell("why", error);
  } finally {
    byId("ask-why").disabled = false;
  }
});

function show(why) {
  byId("why").hidden = false;
  byId("why-sentence").textContent = why.sentence;
  byId("why-hint").textContent = why.hint;
  byId("why-ranks").replaceChildren(...why.ranks.map(row));
}

function row(stack) {
  const place = lines(stack.frames) || STATES[stack.sight] || "not in the cell yet";
  const noProgress = stack.sight === "seen" ? `${Math.round(stack.quiet_s)} s` : "";
  const cells = [stack.rank, place, collectiveOf(stack.collective), noProgress].map((text) => element("td", {}, String(text)));
  return element("tr", {}, ...cells);
}

// Where torch's flight recorder has it: "in all_reduce 13, float32[10, 20]".
function collectiveOf(collective) {
  if (!collective) {
    return "";
  }
  const when = collective.is_over ? "after" : "in";
  return [`${when} ${collective.name} ${collective.number}`, collective.tensors].filter(Boolean).join(", ");
}

// The cell's lines, the innermost first.
function lines(frames) {
  const own = frames.filter((frame) => frame.cell);
  return own.map((frame) => (frame.text ? `${frame.line}: ${frame.text}` : String(frame.line))).join(" ← ");
}
