// One job, live: its state, its ranks' output, its history. The rest of a run's page listens to `changes`.

import { address, ask, element, jobId, listen, tellOf } from "./service.js";
import { showFiles } from "./job_files.js";
import { addDisplays, drawn, forgetDisplays, leftOut } from "./job_output.js";
import { searchLog } from "./job_search.js";
import { showSnapshots } from "./job_snapshots.js";
import { showWhy } from "./job_why.js";
import { attachLine, clockTime, isOver, reasonText, runTimeCell, stateBadge, stopButton } from "./job_parts.js";

const TAIL_CHARACTERS = 200_000;
const HISTORY_LINES = 200;
const byId = (id) => document.getElementById(id);
// Events: job (its detail is the job), records (ranks logged values).
export const changes = new EventTarget();
const log = byId("log");
const tails = new Map();
let shown = "";
let picked = false;
let attempt = 0;
let lastLine = 0;
let drawing = false;

function showJob(job) {
  if (job.attempt !== attempt) {
    attempt = job.attempt;
    tails.clear();
    forgetDisplays();
    picked = false;
    byId("ranks").replaceChildren();
    draw();
  }
  byId("heading").textContent = `Run ${job.id}: ${job.name}`;
  byId("state").replaceChildren(stateBadge(job));
  const where = [job.world_size && `${job.world_size} ranks`, job.nodes.join(", "), job.owner];
  byId("facts").replaceChildren(where.filter(Boolean).join(" · "), job.started_at ? " · " : "", runTimeCell(job));
  byId("actions").replaceChildren(attachLine(job), " ", isOver(job) ? "" : stopButton(job, showJob));
  byId("reason").textContent = job.error ? "" : reasonText(job);
  byId("reason").hidden = !byId("reason").textContent;
  showError(job.error);
  showWhy(job);
  changes.dispatchEvent(new CustomEvent("job", { detail: job }));
  tellOf("history", loadHistory());
  tellOf("files", showFiles());
  tellOf("snapshots", showSnapshots());
}

function showError(error) {
  byId("error").hidden = !error;
  const parts = { message: error?.message, hint: error?.hint, traceback: error?.traceback };
  for (const [name, text] of Object.entries(parts)) {
    byId(`error-${name}`).textContent = text ?? "";
    byId(`error-${name}`).hidden = !text;
  }
}

async function loadHistory() {
  const history = await ask(`api/jobs/${jobId}/history`, { query: { after: lastLine, limit: HISTORY_LINES } });
  for (const line of history.lines.filter((line) => line.id > lastLine)) {
    lastLine = line.id;
    const time = element("td", { className: "mc-number text-body-secondary" }, clockTime(line.at));
    byId("history").append(element("tr", {}, time, element("td", {}, line.kind), element("td", {}, line.text)));
  }
  if (history.more) {
    await loadHistory();
  }
}

function addOutput(chunk) {
  if (!tails.has(chunk.stream)) {
    tails.set(chunk.stream, "");
    addTab(chunk.stream);
  }
  const gap = leftOut(chunk.skipped_bytes);
  tails.set(chunk.stream, (tails.get(chunk.stream) + gap + chunk.text).slice(-TAIL_CHARACTERS));
  if (chunk.stream === shown) {
    drawSoon();
  }
}

// A large picture may come after the line that says where it is.
function addPictures(event) {
  addDisplays(event);
  drawSoon();
}

function drawSoon() {
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(draw);
  }
}

function draw() {
  drawing = false;
  log.replaceChildren(...drawn(tails.get(shown) ?? ""));
  if (byId("follow").checked) {
    log.scrollTop = log.scrollHeight;
  }
  searchLog();
  const rank = shown.replace("rank-", "");
  byId("download").hidden = !shown;
  byId("download").href = address(`api/jobs/${jobId}/log`, { rank, attempt, download: 1 });
}

function addTab(stream) {
  const button = element("button", { type: "button", className: "nav-link py-0", role: "tab" }, stream.replace("-", " "));
  button.dataset.stream = stream;
  button.addEventListener("click", () => {
    picked = true;
    select(stream);
  });
  const order = (tab) => Number(tab.dataset.stream.replace("rank-", ""));
  const item = element("li", { className: "nav-item" }, button);
  const after = [...byId("ranks").children].find((other) => order(other.firstChild) > order(button));
  byId("ranks").insertBefore(item, after ?? null);
  // The lowest rank is shown until the user picks one.
  if (!picked) {
    select(byId("ranks").querySelector("button").dataset.stream);
  }
}

function select(stream) {
  shown = stream;
  for (const button of byId("ranks").querySelectorAll("button")) {
    button.classList.toggle("active", button.dataset.stream === stream);
    button.setAttribute("aria-selected", String(button.dataset.stream === stream));
  }
  byId("follow").checked = true;
  draw();
}

// Who scrolls up wants to read there; who scrolls to the end wants to follow.
log.addEventListener("scroll", () => {
  byId("follow").checked = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
});
byId("follow").addEventListener("change", draw);

const stream = listen(`api/jobs/${jobId}/events`, {
  on: {
    job: showJob,
    log: addOutput,
    displays: addPictures,
    records: () => changes.dispatchEvent(new Event("records")),
    end(job) {
      showJob(job);
      stream.close();
    },
  },
});
