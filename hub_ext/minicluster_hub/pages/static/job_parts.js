// Parts that show a job, on the list and on its own page.

import { ask, dayTime, element, tell, url } from "./service.js";

const COLOURS = {
  queued: "text-bg-secondary",
  starting: "text-bg-info",
  running: "text-bg-primary",
  stopping: "text-bg-warning",
  failing: "text-bg-warning",
  requeuing: "text-bg-warning",
  yielding: "text-bg-warning",
  succeeded: "mc-good",
  failed: "text-bg-danger",
  stopped: "text-bg-secondary",
};
const OVER = ["succeeded", "failed", "stopped"];

export const isOver = (job) => OVER.includes(job.state);

export function stateBadge(job) {
  return element("span", { className: `badge ${COLOURS[job.state] ?? "text-bg-secondary"}` }, job.state);
}

export function reasonText(job) {
  const parts = [job.error && job.state !== "queued" ? job.error.message : job.reason];
  if (job.queue_position) {
    parts.push(`place ${job.queue_position} in the queue`);
  }
  if (job.expected_start_at) {
    parts.push(`about ${dayTime(job.expected_start_at)}`);
  }
  return parts.filter(Boolean).join("; ");
}

export function clockTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString();
}

export function runTime(job) {
  if (!job.started_at) {
    return "";
  }
  const seconds = Math.max(0, Math.floor((job.ended_at ?? Date.now() / 1000) - job.started_at));
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return `${hours ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}`;
}

// One timer for the page updates every run time that `runTimeCell` made.
export function runTimeCell(job) {
  const cell = element("span", { className: "mc-number mc-runtime" }, runTime(job));
  cell.job = job;
  return cell;
}

setInterval(() => {
  if (!document.hidden) {
    for (const cell of document.querySelectorAll(".mc-runtime")) {
      cell.textContent = runTime(cell.job);
    }
  }
}, 1000);

export function stopButton(job, changed) {
  const button = element("button", { type: "button", className: "btn btn-sm btn-danger" }, "Stop");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const asked = await ask(`api/jobs/${job.id}/stop`, { method: "POST" });
      // The answer may be older than the job's state: a newer state has drawn another button already.
      if (button.isConnected) {
        changed(asked);
      }
      tell("stop", null);
    } catch (error) {
      button.disabled = false;
      tell("stop", error);
    }
  });
  button.disabled = ["stopping", "failing"].includes(job.state);
  return button;
}

export const attachLine = (job) => copyLine(`%distribute attach ${job.id}`);

// A line for a notebook, with a button that copies it.
export function copyLine(line) {
  const button = element("button", { type: "button", className: "btn btn-sm btn-outline-secondary" }, "Copy");
  button.setAttribute("aria-label", `Copy ${line}`);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(line)) ? "Copied" : "Select and copy it";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return element("span", { className: "text-nowrap" }, element("code", {}, line), " ", button);
}

// The clipboard's API exists only over HTTPS or on localhost; over plain HTTP the old way works.
async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  const field = element("textarea", { value: text, className: "visually-hidden" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

export function jobLink(job, text) {
  return element("a", { href: `${url}runs/${job.id}` }, text);
}
