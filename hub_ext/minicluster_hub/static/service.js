// Talking to the job service from its own pages. Strings of users only ever become text nodes.

import { readEvents } from "./event_stream.js";

const main = document.getElementById("minicluster");
export const url = main.dataset.url;
export const user = main.dataset.user;
export const jobId = main.dataset.job;

// The hub wants it on reads as well, once a script asks; never in an address, which is kept in histories and logs.
const headers = { "X-XSRFToken": main.dataset.xsrf };
const AGAIN_MS = 2000;

export function address(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  return `${url}${path}${search && "?"}${search}`;
}

async function request(path, { query, ...how }) {
  const answer = await fetch(address(path, query), { ...how, headers });
  if (answer.status === 401) {
    window.location.reload(); // logged out meanwhile: the page itself leads to the login
  }
  return answer;
}

export async function ask(path, { method = "GET", query = {}, json } = {}) {
  const body = json === undefined ? undefined : JSON.stringify(json);
  const answer = await request(path, { query, method, body });
  // The proxy answers in the service's place while that starts anew, with a page.
  const told = answer.status === 204 ? null : await answer.json().catch(() => undefined);
  if (answer.ok && told !== undefined) {
    return told;
  }
  const away = `The job service does not answer (${answer.status}). Jobs go on; try again in a moment.`;
  throw new Error(told?.error ? [told.error.message, told.error.hint].filter(Boolean).join("; ") : away);
}

const problems = new Map();

// Shows what went wrong in a part of the page, or with null that it went well. Each part takes back only what it
// said itself: a list that loads beside it does not hide why a person's change was refused.
export function tell(part, error) {
  problems.delete(part);
  if (error) {
    problems.set(part, error.message);
  }
  const box = document.getElementById("problem");
  box.textContent = [...problems.values()].join(" ");
  box.hidden = problems.size === 0;
}

// Listens until `close()`. What breaks (a network, a service that starts anew) is tried again after a pause.
export function listen(path, { query = {}, open = () => {}, on = {} }) {
  const banner = document.getElementById("connection");
  const ended = new AbortController();
  let last = "";
  const hear = ({ name, id, data }) => {
    last = id || last;
    try {
      on[name]?.(JSON.parse(data));
    } catch (error) {
      window.reportError(error); // what one event brings about does not end the stream
    }
  };
  const follow = async () => {
    const answer = await request(path, { query: last ? { ...query, after: last } : query, signal: ended.signal });
    if (answer.ok) {
      banner.hidden = true;
      open();
      await readEvents(answer.body, hear);
    }
  };
  const start = async () => {
    while (!ended.signal.aborted) {
      await follow().catch(() => {});
      banner.hidden = ended.signal.aborted;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  };
  start();
  return {
    close() {
      ended.abort();
      banner.hidden = true;
    },
  };
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

// A day and a time of it, as people write them here; nothing for no moment.
export function dayTime(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" }) : "";
}

export function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return `${Number((bytes / 1000 ** step).toPrecision(3))} ${units[step]}`;
}
