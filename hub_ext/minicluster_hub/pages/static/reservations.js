// Reservations, maintenance and drained nodes: everybody sees them, admins make and cancel them.

import { ask, dayTime, element, tell } from "./service.js";

const place = document.getElementById("reservations");
const form = document.getElementById("reservation");
const isAdmin = Boolean(place.dataset.admin);

async function act(path, options) {
  try {
    await ask(path, options);
    tell("change of a reservation", null);
  } catch (error) {
    tell("change of a reservation", error);
  }
  await loadReservations();
}

export function drain(node, closed) {
  const why = closed ? "" : window.prompt(`Drain ${node}: it takes nothing new, and jobs that can be moved leave it. Why?`, "");
  if (why !== null) {
    const action = closed ? "undrain" : "drain";
    act(`api/nodes/${encodeURIComponent(node)}/${action}`, { method: "POST", json: closed ? undefined : { note: why } });
  }
}

function row(reservation) {
  const remove = element("button", { type: "button", className: "btn btn-outline-secondary btn-sm" }, "Cancel");
  remove.addEventListener("click", () => act(`api/reservations/${reservation.id}`, { method: "DELETE" }));
  return element(
    "tr",
    { "data-reservation": reservation.id },
    element("td", { className: "mc-reason" }, reservation.over ? `${reservation.told.split(" until ")[0]}: ${reservation.over}` : reservation.told),
    element("td", {}, dayTime(reservation.begins_at)),
    element("td", {}, dayTime(reservation.ends_at)),
    element("td", {}, reservation.by),
    element("td", {}, isAdmin && !reservation.over ? remove : ""),
  );
}

export async function loadReservations() {
  try {
    const { claims: reservations } = await ask("api/reservations");
    place.tBodies[0].replaceChildren(...reservations.map(row));
    document.getElementById("reservations-part").hidden = reservations.length === 0;
    place.hidden = reservations.length === 0;
    tell("reservations", null);
  } catch (error) {
    tell("reservations", error);
  }
}

function asked() {
  const value = (id) => document.getElementById(`reservation-${id}`).value.trim();
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
  act("api/reservations", { method: "POST", json: asked() });
});
