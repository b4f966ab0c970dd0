// The nodes and who holds their slots, live.

import { ask, element, listen, tell, url, user } from "./service.js";

const place = document.getElementById("nodes");

function untilText(until) {
  if (until === null) {
    return "";
  }
  if (until * 1000 <= Date.now()) {
    return ", whose time is over";
  }
  const time = new Date(until * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  return ` until ${time}`;
}

function slotText(slot) {
  if (slot.owner === null) {
    return ["free"];
  }
  if (slot.server !== null) {
    return [`notebook server of ${slot.owner}${untilText(slot.until)}`];
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
  const state = element("span", { className: `badge ${node.up ? "mc-good" : "text-bg-danger"}` }, node.up ? "up" : "down");
  const head = element("div", { className: "card-header d-flex justify-content-between" }, element("strong", {}, node.name), state);
  const slots = element("ul", { className: "list-group list-group-flush" }, ...node.slots.map(slotLine));
  return element("div", { className: "col-sm-6 col-lg-4" }, element("div", { className: "card" }, head, slots));
}

function show(list) {
  place.replaceChildren(...list.nodes.map(card));
  document.getElementById("empty").hidden = list.nodes.length > 0;
}

async function load() {
  try {
    show(await ask("api/nodes"));
    tell(null);
  } catch (error) {
    tell(error);
  }
}

listen("api/events", { open: load, on: { nodes: show } });
