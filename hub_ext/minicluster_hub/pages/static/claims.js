// Reservations, maintenance and drained nodes: everybody sees them, admins make them and take them back.

import { ask, dayTime, element, tell } from "./service.js";

const place = document.getElementById("claims");
const form = document.getElementById("claim");
const isAdmin = Boolean(place.dataset.admin);

async function act(path, options) {
  try {
    await ask(path, options);
    tell("change of a claim", null);
  } catch (error) {
    tell("change of a claim", error);
  }
  await loadClaims();
}

export function drain(node, closed) {
  const why = closed ? "" : window.prompt(`Drain ${node}: it takes nothing new, and jobs that can be moved leave it. Why?`, "");
  if (why !== null) {
    act(`api/nodes/${encodeURIComponent(node)}/${closed ? "undrain" : "drain"}`, { method: "POST", json: closed ? undefined : { note: why } });
  }
}

function row(claim) {
  const remove = element("button", { type: "button", className: "btn btn-outline-secondary btn-sm" }, "Take back");
  remove.addEventListener("click", () => act(`api/claims/${claim.id}`, { method: "DELETE" }));
  return element(
    "tr",
    { "data-claim": claim.id },
    element("td", { className: "mc-reason" }, claim.over ? `${claim.told.split(" until ")[0]}: ${claim.over}` : claim.told),
    element("td", {}, dayTime(claim.begins_at)),
    element("td", {}, dayTime(claim.ends_at)),
    element("td", {}, claim.by),
    element("td", {}, isAdmin && !claim.over ? remove : ""),
  );
}

export async function loadClaims() {
  try {
    const { claims } = await ask("api/claims");
    place.tBodies[0].replaceChildren(...claims.map(row));
    document.getElementById("claims-part").hidden = claims.length === 0 && !isAdmin;
    place.hidden = claims.length === 0;
    tell("claims", null);
  } catch (error) {
    tell("claims", error);
  }
}

function asked() {
  const value = (id) => document.getElementById(`claim-${id}`).value.trim();
  const moment = (id) => (value(id) ? new Date(value(id)).getTime() / 1000 : null);
  return {
    kind: value("kind"),
    holder: value("holder"),
    nodes: value("nodes").split(/[\s,]+/).filter(Boolean),
    slots: value("slots") ? Number(value("slots")) : null,
    begins_at: moment("begins"),
    ends_at: moment("ends") ?? 0,
    note: value("note"),
  };
}

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  act("api/claims", { method: "POST", json: asked() });
});
