// The nodes, the holders of their slots, and what their machines do.

import { drain } from "../reservations.js";
import { dayTime, element, size, url, user } from "../service.js";

const place = document.getElementById("nodes");
const machinesPlace = document.getElementById("machines");
const drains = document.getElementById("drains");

function untilText(until) {
  if (until === null) {
    return "";
  }
  if (until * 1000 <= Date.now()) {
    return ", whose time is over";
  }
  return ` until ${dayTime(until)}`;
}

function idleText(slot) {
  if (slot.idle_since === null) {
    return "";
  }
  const since = `, idle since ${dayTime(slot.idle_since)}`;
  if (slot.held_bytes > 0) {
    return `${since}, but holds ${(slot.held_bytes / 1e9).toFixed(1)} GB of its memory`;
  }
  return slot.reclaim_at === null ? since : `${since}, for others from ${dayTime(slot.reclaim_at)}`;
}

function slotText(slot) {
  if (slot.owner === null) {
    return ["free"];
  }
  if (slot.server !== null) {
    return [`notebook server of ${slot.owner}${untilText(slot.until)}${idleText(slot)}`];
  }
  if (slot.job_id === null) {
    return [`kept warm for ${slot.owner}`];
  }
  const name = `job ${slot.job_id}`;
  const mine = slot.owner === user;
  return [mine ? element("a", { href: `${url}runs/${slot.job_id}` }, name) : name, ` of ${slot.owner}`];
}

function slotLine(slot) {
  const colour = slot.owner === null ? "mc-good" : slot.warm ? "text-bg-warning" : "text-bg-primary";
  const badge = element("span", { className: `badge ${colour} me-2` }, `${slot.kind} ${slot.slot}${slot.share < 1 ? ", half" : ""}`);
  return element("li", { className: "list-group-item" }, badge, ...slotText(slot));
}

function stateBadge(node) {
  const colour = !node.up ? "text-bg-danger" : node.closed ? "text-bg-warning" : "mc-good";
  return element("span", { className: `badge ${colour}` }, !node.up ? "down" : node.closed ? "closed" : "up");
}

function card(node) {
  const head = element("div", { className: "card-header d-flex justify-content-between" }, element("strong", {}, node.name), stateBadge(node));
  const slots = element("ul", { className: "list-group list-group-flush" }, ...node.slots.map(slotLine));
  const why = node.closed ? element("p", { className: "small px-3 pt-2 mb-1" }, node.closed) : "";
  const readings = element("div", { className: "px-3 py-2 border-bottom", hidden: true, "data-readings": node.name });
  return element("div", { className: "col-sm-6 col-xl-4" }, element("div", { className: "card" }, head, readings, why, slots));
}

function drainLine(node) {
  const drained = node.closed.includes(" is drained");
  const className = "btn btn-outline-contrast btn-sm";
  const button = element("button", { type: "button", className }, drained ? "Let it take jobs again" : "Drain");
  button.addEventListener("click", () => drain(node.name, drained));
  const text = element("span", {}, element("strong", {}, node.name), node.closed ? ` ${node.closed}` : "");
  return element("li", { className: "list-group-item d-flex justify-content-between align-items-center gap-2", "data-node": node.name }, text, button);
}

export function showNodes(list) {
  place.replaceChildren(...list.nodes.map(card));
  drains?.replaceChildren(...list.nodes.map(drainLine));
  document.getElementById("empty").hidden = list.nodes.length > 0;
  const up = list.nodes.filter((node) => node.up);
  const slots = up.flatMap((node) => node.slots);
  const count = (some) => some.reduce((sum, slot) => sum + slot.share, 0);
  const free = count(slots.filter((slot) => slot.owner === null || slot.warm));
  const gpus = slots.some((slot) => slot.kind === "gpu");
  const nodes = `${up.length} of ${list.nodes.length} nodes up`;
  document.getElementById("summary").textContent = list.nodes.length ? `${nodes}, ${free} of ${count(slots)} ${gpus ? "slots (GPUs)" : "slots"} free` : "";
}

// --- what machines do ---------------------------------------------------------------------

function meter(name, percent, text) {
  const bar = element("div", { className: `progress-bar${percent > 90 ? " bg-warning" : ""}` });
  bar.style.width = `${Math.min(100, Math.max(0, percent))}%`; // The policy forbids the attribute, not the property.
  const values = { role: "progressbar", "aria-label": name, "aria-valuenow": String(Math.round(percent)), "aria-valuemin": "0", "aria-valuemax": "100" };
  const progress = element("div", { className: "progress mc-meter", ...values }, bar);
  return [element("span", {}, name), progress, element("span", { className: "mc-number text-end" }, text)];
}

function share(part, whole) {
  return whole > 0 ? (100 * part) / whole : 0;
}

function gpuLines(gpu, number) {
  const name = `GPU ${number}`;
  const use = gpu.use_percent === null ? [] : meter(name, gpu.use_percent, `${Math.round(gpu.use_percent)} %`);
  const memory = meter(`${name} memory`, share(gpu.memory_bytes, gpu.memory_total_bytes), `${size(gpu.memory_bytes)} of ${size(gpu.memory_total_bytes)}`);
  const facts = [
    gpu.model,
    gpu.temperature_c === null ? "" : `${Math.round(gpu.temperature_c)} °C`,
    gpu.power_w === null ? "" : `${Math.round(gpu.power_w)}${gpu.power_limit_w ? ` of ${Math.round(gpu.power_limit_w)}` : ""} W`,
  ].filter(Boolean);
  return [...use, ...memory, element("span", { className: "mc-wide text-body-secondary" }, facts.join(" · "))];
}

function readingLines(reading) {
  const network = `${size(reading.received_bytes_s)}/s in, ${size(reading.sent_bytes_s)}/s out`;
  return element(
    "div",
    { className: "mc-readings small" },
    ...meter("CPU", reading.cpu_percent, `${Math.round(reading.cpu_percent)} % of ${Number(reading.cores.toPrecision(3))}`),
    ...meter("Memory", share(reading.memory_bytes, reading.memory_total_bytes), `${size(reading.memory_bytes)} of ${size(reading.memory_total_bytes)}`),
    ...reading.gpus.flatMap(gpuLines),
    element("span", { className: "mc-wide" }, `Network ${network}`),
  );
}

function quietText(machine) {
  return element("p", { className: "small text-body-secondary mb-0" }, machine.fields.length > 0 ? "No readings at present." : "No readings yet.");
}

function machineCard(machine) {
  const head = element("div", { className: "card-header" }, element("strong", {}, machine.name), element("span", { className: "text-body-secondary" }, ` is ${machine.nodes.join(", ")}`));
  const body = element("div", { className: "card-body py-2" }, machine.reading ? readingLines(machine.reading) : quietText(machine));
  return element("div", { className: "col-12" }, element("div", { className: "card" }, head, body));
}

// A machine that is one node is shown in the node's card; one that several nodes are, in a card of its own.
export function showMachines(list) {
  const several = list.machines.filter((machine) => machine.nodes.length > 1 || machine.name !== machine.nodes[0]);
  machinesPlace.replaceChildren(...several.map(machineCard));
  machinesPlace.hidden = several.length === 0;
  for (const part of place.querySelectorAll("[data-readings]")) {
    const machine = list.machines.find((one) => one.name === part.dataset.readings && !several.includes(one));
    part.hidden = !machine;
    if (machine) {
      part.replaceChildren(machine.reading ? readingLines(machine.reading) : quietText(machine));
    }
  }
}
