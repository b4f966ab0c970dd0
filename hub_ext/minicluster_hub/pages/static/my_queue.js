// The user's share, and the jobs before the user's first one; loaded again when the queue changes, at intervals.

import { ask, dayTime, element, tell } from "./service.js";

const PAUSE_MS = 2000;
const section = document.getElementById("me");
let timer = null;

function number(value) {
  return `${Number(Number(value.toFixed(2)).toPrecision(3))}`;
}

function shareWords(told) {
  const { share } = told;
  const others = share.others_slot_hours === null ? "nobody else any" : `others ${number(share.others_slot_hours)} on average`;
  const fair = share.fair_slots === null ? "" : `; ${number(share.fair_slots)} would be your fair share now`;
  return (
    `You hold ${share.slots} of ${share.cluster_slots} slots${fair}. ` +
    `You have had ${number(share.used_slot_hours)} slot-hours lately, ${others}.`
  );
}

function quotaWords({ kind, limit, used, summary }) {
  return element("li", {}, `${kind}: ${used === null ? "" : `${number(used)} of `}${number(limit)} (${summary})`);
}

function jobWords(job) {
  const expected = job.expected_start_at ? ` Expected start: ${dayTime(job.expected_start_at)}` : "";
  const latest = job.latest_start_at ? `, ${dayTime(job.latest_start_at)} at the latest.` : expected && ".";
  return element("li", {}, `Job ${job.id} (${job.name}): ${job.reason}.${expected}${latest}`);
}

function aheadRow(one) {
  return element(
    "tr",
    { "data-owner": one.owner },
    element("td", {}, one.owner),
    element("td", { className: "text-end" }, `${one.slots}`),
    element("td", {}, dayTime(one.since)),
    element("td", {}, one.why),
  );
}

function show(told) {
  document.getElementById("share").textContent = shareWords(told);
  document.getElementById("quotas").replaceChildren(...told.share.quotas.map(quotaWords));
  document.getElementById("my-jobs").replaceChildren(...told.jobs.map(jobWords));
  const table = document.getElementById("before");
  table.tBodies[0].replaceChildren(...told.before.map(aheadRow));
  table.hidden = told.before.length === 0;
  section.hidden = false;
}

async function look() {
  timer = null;
  try {
    show(await ask("api/queue/me"));
    tell("my queue", null);
  } catch (error) {
    tell("my queue", error);
  }
}

export function queueChanged() {
  timer ??= setTimeout(look, section.hidden ? 0 : PAUSE_MS);
}
