// Users' storage at the job service, its limits, and its largest entries, with buttons to remove them.

import { ask, dayTime, element, size, tell, url } from "./service.js";

const isAdmin = Boolean(document.getElementById("owners").dataset.admin);
const names = {
  cells: "cells and results",
  snapshots: "snapshots",
  files: "files of output folders",
  output: "output",
  data: "data sets",
  images: "published images",
};

function kinds(uses) {
  const told = uses.map((use) => `${names[use.kind] ?? use.kind} ${size(use.size_bytes)}`).join(", ");
  return element("div", { className: "small text-body-secondary text-wrap" }, told);
}

function ownerLine(one) {
  const share = Math.min(100, (100 * one.used_bytes) / Math.max(1, one.limit_bytes));
  const bar = element("meter", { min: 0, max: 100, high: 90, value: share, title: `${Math.round(share)} %` });
  const coming = one.coming_bytes ? `, and ${size(one.coming_bytes)} on their way` : "";
  return element(
    "tr",
    { "data-owner": one.owner },
    element("th", { scope: "row" }, one.owner),
    element("td", {}, bar, ` ${size(one.used_bytes)} of ${size(one.limit_bytes)}${coming}`, kinds(one.uses)),
  );
}

function versions(thing) {
  const count = thing.earlier_versions;
  const told = `${size(thing.earlier_bytes)} of it for ${count} earlier ${count === 1 ? "version" : "versions"} that runs read`;
  return element("div", { className: "small text-body-secondary text-wrap" }, count ? told : "");
}

function remove(thing, what) {
  const made = element("button", { type: "button", className: "btn btn-sm btn-outline-danger" }, "Remove");
  made.setAttribute("aria-label", `Remove what ${what} keeps`);
  made.addEventListener("click", async () => {
    if (!window.confirm(`Remove for good what ${what} of ${thing.owner} keeps (${size(thing.size_bytes)})?`)) {
      return;
    }
    made.disabled = true;
    try {
      if (thing.job_id === null) {
        await ask(`api/data/sets/${thing.name}`, { method: "DELETE", query: { owner: thing.owner } });
      } else {
        await ask(`api/jobs/${thing.job_id}/storage`, { method: "DELETE" });
      }
      tell("remove", null);
      await load();
    } catch (error) {
      made.disabled = false;
      tell("remove", error);
    }
  });
  return made;
}

function thingLine(thing) {
  const job = thing.job_id !== null;
  const what = job ? `job ${thing.job_id}` : `data set ${thing.name}`;
  const link = job ? element("a", { href: `${url}runs/${thing.job_id}` }, what) : what;
  return element(
    "tr",
    { "data-thing": what },
    element("th", { scope: "row" }, link, job ? element("div", { className: "small fw-normal" }, thing.name) : ""),
    element("td", {}, thing.owner),
    element("td", {}, size(thing.size_bytes), job ? kinds(thing.uses) : versions(thing)),
    element("td", { className: "d-none d-md-table-cell text-nowrap" }, dayTime(thing.created_at)),
    element("td", {}, thing.open ? "not over yet" : remove(thing, what)),
  );
}

function show(report) {
  document.getElementById("owners").tBodies[0].replaceChildren(...report.owners.map(ownerLine));
  document.getElementById("things").replaceChildren(...report.things.map(thingLine));
  document.getElementById("some").hidden = report.things.length === 0;
  document.getElementById("empty").hidden = report.things.length > 0;
  const { disk } = report;
  document.getElementById("disk").textContent = disk
    ? `The job service's disk has ${size(disk.free_bytes)} free of ${size(disk.total_bytes)}; ${size(disk.reserve_bytes)} are kept for its database.`
    : "";
}

async function load() {
  try {
    show(await ask("api/storage", { query: isAdmin ? { owner: "all" } : {} }));
    tell("storage", null);
  } catch (error) {
    tell("storage", error);
  }
}

load();
