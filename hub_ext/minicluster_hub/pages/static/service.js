// Calls the job service from its pages. Users' strings become text nodes only.

import { readEvents } from "./event_stream.js";

const main = document.getElementById("minicluster");
export const url = main.dataset.url;
export const user = main.dataset.user;
export const jobId = main.dataset.job;

// Sent in a header, never in a URL: logs and the browser's history contain URLs.
const headers = { "X-XSRFToken": main.dataset.xsrf };

export function address(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  return `${url}${path}${search && `?${search}`}`;
}

export async function ask(path, { method = "GET", query = {}, json } = {}) {
  const body = json === undefined ? undefined : JSON.stringify(json);
  const answer = await fetch(address(path, query), { method, body, headers });
  if (answer.status === 401) {
    window.location.reload(); // logged out meanwhile: the page itself leads to the login
  }
  // While the service restarts, the proxy answers with a page.
  const told = answer.status === 204 ? null : await answer.json().catch(() => undefined);
  if (answer.ok && told !== undefined) {
    return told;
  }
  throw refused(answer, told);
}

// A file of the service, not read yet.
export async function askFile(link, more = {}) {
  const answer = await fetch(link, { headers: { ...headers, ...more } });
  if (!answer.ok) {
    throw refused(answer, await answer.json().catch(() => undefined));
  }
  return answer;
}

function refused(answer, told) {
  const away = `The job service does not answer (${answer.status}). Jobs keep running; try again in a moment.`;
  if (typeof told?.error === "string") {
    return new Error(told.error); // of a model: as its protocol writes errors
  }
  return new Error(told?.error ? [told.error.message, told.error.hint].filter(Boolean).join("; ") : away);
}

const problems = new Map();

// Shows the error of a part of the page; null removes it. A part removes only its own error, so that a list that
// loads does not hide why a change was refused.
export function tell(part, error) {
  problems.delete(part);
  if (error) {
    problems.set(part, error.message);
  }
  const box = document.getElementById("problem");
  box.textContent = [...problems.values()].join(" ");
  box.hidden = problems.size === 0;
}

// Shows the error of the work on a part of the page, if it fails.
export function tellOf(part, work) {
  work.then(() => tell(part, null), (error) => tell(part, error));
}

const STATES = new Set(["job", "nodes"]); // events that tell all of a state, so that they may be taken twice
const loads = new Set(); // of each load that is under way: the states since it began

// Loads a part of a page. An event that comes meanwhile may be newer than the answer: it counts again after it.
export async function loadBesideEvents(load) {
  const since = [];
  loads.add(since);
  try {
    await load();
  } finally {
    loads.delete(since);
  }
  since.forEach(([action, data]) => act(action, data));
}

// Listens until `close()`. It reconnects when the connection is lost, even if a restarting service refuses it.
export function listen(path, { query = {}, open = async () => {}, on = {} }) {
  const banner = document.getElementById("connection");
  const control = new AbortController();
  readEvents(address(path, query), {
    headers,
    signal: control.signal,
    opened() {
      banner.hidden = true;
      loadBesideEvents(open);
    },
    lost(status) {
      banner.hidden = false;
      if (status === 401) {
        window.location.reload(); // logged out meanwhile: the page itself leads to the login
      }
    },
    received({ name, data }) {
      if (STATES.has(name)) {
        loads.forEach((since) => since.push([on[name], data]));
      }
      act(on[name], data);
    },
  });
  return {
    close() {
      control.abort();
      banner.hidden = true;
    },
  };
}

// An error at one event does not end the stream.
function act(action, data) {
  try {
    action?.(JSON.parse(data));
  } catch (error) {
    reportError(error);
  }
}

// element("td", { className: "x" }, "text", child, ...): text is set as text.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) {
      made.setAttribute(name, value);
    } else {
      made[name] = value;
    }
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

// A date and time in the user's locale; "" for none.
export function dayTime(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" }) : "";
}

export function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return `${Number((bytes / 1000 ** step).toPrecision(3))} ${units[step]}`;
}
