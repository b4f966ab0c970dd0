// The images that jobs and notebook servers may run; admins allow and retire the published ones.

import { ask, element, size, tell, tellOf } from "./service.js";

const some = document.getElementById("some");
const isAdmin = Boolean(some.dataset.admin);
const colours = { allowed: "mc-good", pending: "text-bg-warning", retired: "text-bg-secondary" };
const words = { allowed: "allowed", pending: "waits for an administrator", retired: "retired" };
const devices = { cpu: "CPU", cuda: "CUDA" };

function named(image) {
  const about = [image.description, image.digest].filter(Boolean);
  return element(
    "th",
    { scope: "row" },
    element("div", {}, image.name),
    ...about.map((text) => element("div", { className: "small text-body-secondary fw-normal text-break" }, text)),
  );
}

function button(image, verb, text, colour) {
  const made = element("button", { type: "button", className: `btn btn-sm ${colour} me-1` }, text);
  made.addEventListener("click", () => say(image, verb));
  return made;
}

function buttons(image) {
  if (!isAdmin || !image.owner) {
    return [];
  }
  return [
    image.state === "allowed" ? null : button(image, "allow", "Allow", "btn-primary"),
    image.state === "retired" ? null : button(image, "retire", "Retire", "btn-outline-danger"),
  ].filter(Boolean);
}

function names(image) {
  return image.packages.map((one) => `${one.name} ${one.version}`).join(", ");
}

// The list has the first packages of each image; a click loads the others.
function packages(image) {
  const cell = element("td", {}, names(image));
  if (image.more_packages) {
    const more = element(
      "button",
      { type: "button", className: "btn btn-link btn-sm p-0 align-baseline" },
      `and ${image.more_packages} more`,
    );
    more.addEventListener("click", () => tellOf("packages of an image", showAll(image, cell)));
    cell.append(" ", more);
  }
  return cell;
}

async function showAll(image, cell) {
  cell.replaceChildren(names(await ask(`api/images/${image.digest}`)));
}

function line(image) {
  return element(
    "tr",
    {},
    named(image),
    element("td", {}, element("span", { className: `badge ${colours[image.state]}` }, words[image.state])),
    element("td", {}, devices[image.device] ?? ""),
    element("td", { className: "text-nowrap" }, image.size_bytes ? size(image.size_bytes) : ""),
    element("td", {}, image.owner || "the cluster"),
    packages(image),
    element("td", {}, image.nodes.join(", ")),
    element("td", { className: "text-nowrap" }, ...buttons(image)),
  );
}

async function say(image, verb) {
  try {
    await ask(`api/images/${image.digest}/${verb}`, { method: "POST" });
    tell("change of an image", null);
    await load();
  } catch (error) {
    tell("change of an image", error);
  }
}

async function load() {
  try {
    const list = await ask("api/images");
    document.getElementById("images").replaceChildren(...list.images.map(line));
    document.getElementById("empty").hidden = list.images.length > 0;
    some.hidden = list.images.length === 0;
    tell("images", null);
  } catch (error) {
    tell("images", error);
  }
}

load();
