// Quotas of users and groups: an admin's table, saved as a whole.

import { ask, dayTime, element, tell } from "./service.js";

const table = document.getElementById("limits");
const add = document.getElementById("add-limit");
const save = document.getElementById("save-limits");
let kinds = [];

function field(name, value) {
  const text = value ?? "";
  const common = { className: "form-control form-control-sm", value: `${text}`, size: 6 };
  return element("td", {}, element("input", { ...common, type: "text", name, "aria-label": name }));
}

function row(holder, quota, share) {
  const remove = element("button", { type: "button", className: "btn btn-outline-secondary btn-sm" }, "Remove");
  const cells = [field("holder", holder), ...kinds.map((kind) => field(kind.name, quota[kind.name])), field("share", share)];
  const made = element("tr", { "data-holder": holder }, ...cells, element("td", {}, remove));
  remove.addEventListener("click", () => made.remove());
  return made;
}

function show(report) {
  kinds = report.kinds;
  const { allowances, by, since } = report.in_force;
  const heads = kinds.map((kind) => element("th", { scope: "col", title: kind.summary }, kind.name));
  const first = element("th", { scope: "col" }, "User, group:NAME or *");
  const last = element("th", { scope: "col", title: "weight in fair shares" }, "share");
  table.tHead.replaceChildren(element("tr", {}, first, ...heads, last, element("th", {})));
  const holders = [...new Set([...Object.keys(allowances.quotas), ...Object.keys(allowances.shares)])].sort();
  const rows = holders.map((name) => row(name, allowances.quotas[name] ?? {}, allowances.shares[name]));
  table.tBodies[0].replaceChildren(...rows);
  document.getElementById("limits-by").textContent = by ? `by ${by}, ${dayTime(since)}` : "by the cluster's settings";
}

// Text that is not a number is sent unchanged: the service says what is wrong.
function number(input) {
  const text = input.value.trim();
  return text === "" || Number.isNaN(Number(text)) ? text : Number(text);
}

function chosen() {
  const quotas = {};
  const shares = {};
  for (const line of table.tBodies[0].rows) {
    const fields = Object.fromEntries([...line.querySelectorAll("input")].map((input) => [input.name, input]));
    const { holder, share, ...limits } = fields;
    const set = Object.entries(limits).filter(([, input]) => input.value.trim() !== "");
    if (share.value.trim() !== "") {
      shares[holder.value.trim()] = number(share);
    }
    if (set.length > 0 || share.value.trim() === "") {
      quotas[holder.value.trim()] = Object.fromEntries(set.map(([name, input]) => [name, number(input)]));
    }
  }
  return { quotas, shares };
}

async function load(method, json) {
  try {
    show(await ask("api/quotas", { method, json }));
    add.disabled = save.disabled = false;
    tell("limits", null);
  } catch (error) {
    tell("limits", error);
  }
}

if (table) {
  add.addEventListener("click", () => table.tBodies[0].append(row("", {}, null)));
  save.addEventListener("click", () => load("PUT", chosen()));
  load("GET");
}
