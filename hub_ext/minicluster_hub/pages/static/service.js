// Talking to the job service from its own pages. Strings of users only ever become text nodes.

import { readEvents } from "./event_stream.js";

const main = document.getElementById("minicluster");
export const url = main.dataset.url;
export const user = main.dataset.user;
export const jobId = main.dataset.job;

// Goes into a header, never into a URL: those stand in logs and in the browser's history.
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
  // The proxy answers in the service's place while that starts anew, with a page.
  const told = answer.status === 204 ? null : await answer.json().catch(() => undefined);
  if (answer.ok && told !== undefined) {
    return told;
  }
  const away = `The job service does not answer (${answer.status}). Jobs keep running; try again in a moment.`;
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

// Tells how the work on a part of the page went.
export function tellOf(part, work) {
  work.then(() => tell(part, null), (error) => tell(part, error));
}

// Listens until `close()`. Lost, the connection is made again, also after the server refused it: it starts anew.
export function listen(path, { query = {}, open = () => {}, on = {} }) {
  const banner = document.getElementById("connection");
  const control = new AbortController();
  readEvents(address(path, query), {
    headers,
    signal: control.signal,
    opened() {
      banner.hidden = true;
      open();
    },
    lost(status) {
      banner.hidden = false;
      if (status === 401) {
        window.location.reload(); // logged out meanwhile: the page itself leads to the login
      }
    },
    received: ({ name, data }) => act(on[name], data),
  });
  return {
    close() {
      control.abort();
      banner.hidden = true;
    },
  };
}

// What fails at one event does not end the stream.
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

// A day and a time of it, as people write them here; nothing for no moment.
export function dayTime(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" }) : "";
}

export function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return `${Number((bytes / 1000 ** step).toPrecision(3))} ${units[step]}`;
}
