// Where the time of a run's steps goes, rank by rank.

import { ask, element, jobId, tell } from "../service.js";
import { changes } from "../job.js";
import { numberText } from "./numbers.js";

const byId = (id) => document.getElementById(id);
const percent = (share) => `${Math.round(100 * share)} %`;

export async function showSpeed() {
  const { ranks, straggler, sentence } = await ask(`api/runs/${jobId}/speed`);
  byId("speed").hidden = ranks.length === 0;
  byId("speed-sentence").textContent = sentence;
  byId("speed-rows").replaceChildren(...ranks.map((rank) => {
    const name = element("th", { scope: "row" }, `rank ${rank.rank}${rank.rank === straggler ? " (the others wait for it)" : ""}`);
    const texts = [`${numberText(Number(rank.step_s.toPrecision(3)))} s`, percent(rank.data), percent(rank.compute), percent(rank.communication)];
    return element("tr", {}, name, ...texts.map((text) => element("td", { className: "mc-number" }, text)));
  }));
}

byId("profile").addEventListener("submit", async (event) => {
  event.preventDefault();
  const steps = byId("profile-steps").valueAsNumber;
  const ranks = byId("profile-ranks").value.split(",").map(Number);
  try {
    await ask(`api/runs/${jobId}/profile`, { method: "POST", json: { steps, ranks } });
    byId("profile-said").textContent = "The tables come below when these steps are done, the trace comes with the files.";
    tell("profile", null);
  } catch (error) {
    byId("profile-said").textContent = "";
    tell("profile", error);
  }
});

changes.addEventListener("job", ({ detail: job }) => {
  byId("profile").hidden = job.state !== "running";
});
