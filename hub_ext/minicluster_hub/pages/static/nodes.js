// The nodes and the holders of their slots, live.

import { drain, loadReservations } from "./reservations.js";
import { ask, dayTime, element, listen, tell, url, user } from "./service.js";

const place = document.getElementById("nodes");
const isAdmin = Boolean(place.dataset.admin);

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
  return [mine ? element("a", { href: `${url}jobs/${slot.job_id}` }, name) : name, ` of ${slot.owner}`];
}

function slotLine(slot) {
  const colour = slot.owner === null ? "mc-good" : slot.warm ? "text-bg-warning" : "text-bg-primary";
  const badge = element("span", { className: `badge ${colour} me-2` }, `${slot.kind} ${slot.slot}`);
  return element("li", { className: "list-group-item" }, badge, ...slotText(slot));
}

function card(node) {
  const colour = !node.up ? "text-bg-danger" : node.closed ? "text-bg-warning" : "mc-good";
  const state = element("span", { className: `badge ${colour}` }, !node.up ? "down" : node.closed ? "closed" : "up");
  const head = element("div", { className: "card-header d-flex justify-content-between" }, element("strong", {}, node.name), state);
  const slots = element("ul", { className: "list-group list-group-flush" }, ...node.slots.map(slotLine));
  const why = node.closed ? element("p", { className: "small px-3 pt-2 mb-1" }, node.closed) : "";
  const foot = isAdmin ? element("div", { className: "card-footer" }, drainButton(node)) : "";
  return element("div", { className: "col-sm-6 col-lg-4" }, element("div", { className: "card" }, head, why, slots, foot));
}

function drainButton(node) {
  const drained = node.closed.includes(" is drained");
  const className = "btn btn-outline-secondary btn-sm";
  const button = element("button", { type: "button", className }, drained ? "Let it take jobs again" : "Drain");
  button.addEventListener("click", () => drain(node.name, drained));
  return button;
}

function show(list) {
  place.replaceChildren(...list.nodes.map(card));
  document.getElementById("empty").hidden = list.nodes.length > 0;
}

function changed(list) {
  show(list);
  loadReservations();
}

async function load() {
  try {
    show(await ask("api/nodes"));
    await loadReservations();
    tell("nodes", null);
  } catch (error) {
    tell("nodes", error);
  }
}

listen("api/events", { open: load, on: { nodes: changed } });
