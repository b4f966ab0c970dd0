// Talking to the job service from its own pages. Strings of users only ever become text nodes.

const main = document.getElementById("minicluster");
export const url = main.dataset.url;
export const user = main.dataset.user;
export const jobId = main.dataset.job;

// The hub's page.html gives the token; the hub wants it on reads as well, once a script asks.
const xsrf = window.jhdata.xsrf_token;

export function address(path, query = {}) {
  const search = new URLSearchParams({ ...query, _xsrf: xsrf });
  return `${url}${path}?${search}`;
}

export async function ask(path, { method = "GET", query = {}, json } = {}) {
  const body = json === undefined ? undefined : JSON.stringify(json);
  const answer = await fetch(address(path, query), { method, body, headers: { "X-XSRFToken": xsrf } });
  if (answer.status === 401) {
    window.location.reload(); // logged out meanwhile: the page itself leads to the login
  }
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

// Listens until `close()`. After a pause the browser comes again by itself; when the server refuses
// (it starts anew, a login has ended), the browser gives up, and we ask again.
export function listen(path, { query = {}, open = () => {}, on = {} }) {
  let source;
  let last = "";
  let closed = false;
  const banner = document.getElementById("connection");
  const start = () => {
    source = new EventSource(address(path, last ? { ...query, after: last } : query));
    source.onopen = () => {
      banner.hidden = true;
      open();
    };
    source.onerror = () => {
      banner.hidden = closed;
      if (source.readyState === EventSource.CLOSED && !closed) {
        setTimeout(start, 2000);
      }
    };
    for (const [name, action] of Object.entries(on)) {
      source.addEventListener(name, (event) => {
        last = event.lastEventId || last;
        action(JSON.parse(event.data));
      });
    }
  };
  start();
  return {
    close() {
      closed = true;
      source.close();
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
