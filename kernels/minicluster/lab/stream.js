// One connection for all panels of the page. A browser opens at most six to one server: a stream for each panel
// would leave none for JupyterLab.
//
// The page sends all jobs that it shows, each time: {show: [{service, job, made, number, live}], runs}
//   number: of a session's cell; 0: the whole job.
//   live: the kernel that ran the cell still writes its output here. runs: whether it shows the list of runs.
// and asks for the final picture: {keep: {service, job, made, waited}}. The server answers one page, and none while
// a page is live. waited: whether a kernel took the results, null if unknown.
// The server sends, each with {service, job, made}: {change} (see panel.js), {refused: {message, code}},
// {picture: a MIME bundle}; about the list of runs {runs: {event, data}}: `opened` (load it), `job` and `metrics`, as
// the job service sends them; and {beat} from time to time. When all jobs have ended, the connection is closed: a
// forgotten page must not keep its server in use.

import { JobState } from "./panel.js";

const AGAIN_MS = [500, 1000, 2000, 5000];
const LOOK_MS = 3000;
const SILENT_MS = 25_000;
const OVER_AFTER_MS = 20_000; // By then the final picture was requested.

export function keyOf(job) {
  return JSON.stringify([job.service, job.job, job.made, job.number ?? 0]);
}

export class Stream {
  constructor(server) {
    this.server = server;
    this.shown = new Map(); // key -> {job, state, views}
    this.socket = null;
    this.tries = 0;
    this.told = "";
    this.heardAt = 0;
    this.listing = null;
    setInterval(() => this.look(), LOOK_MS);
  }

  // Returns the state that all panels of this job share; `view` gets its changes.
  add(job, view) {
    const key = keyOf(job);
    if (!this.shown.has(key)) this.shown.set(key, { job, state: new JobState(), views: new Set() });
    const entry = this.shown.get(key);
    entry.views.add(view);
    this.sayShown();
    return entry.state;
  }

  remove(job, view) {
    const entry = this.shown.get(keyOf(job));
    if (!entry?.views.delete(view) || entry.views.size) return;
    this.shown.delete(keyOf(job));
    this.sayShown();
  }

  // Show the list of runs to `view`, or no longer (null).
  list(view) {
    if (this.listing === view) return;
    this.listing = view;
    this.sayShown();
  }

  lists(view) {
    return this.listing === view;
  }

  async stop(job) {
    await this.server.ask("stop", { method: "POST", body: JSON.stringify(job) });
  }

  askToKeep(job, waited) {
    this.send({ keep: { ...job, waited } });
  }

  look() {
    const isOpen = this.socket?.readyState === WebSocket.OPEN;
    if (isOpen && performance.now() - this.heardAt > SILENT_MS) this.socket.close();
    this.sayShown();
  }

  sayShown() {
    const show = [...this.shown.values()].map(({ job, views }) => ({ ...job, live: [...views].some((one) => one.live) }));
    const runs = this.listing !== null;
    if (!runs && [...this.shown.values()].every(isOver)) return this.socket?.close();
    if (!this.socket) this.open();
    const text = JSON.stringify({ show, runs });
    if (text !== this.told && this.send({ show, runs })) this.told = text;
  }

  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  open() {
    const socket = (this.socket = this.server.socket("stream"));
    socket.onopen = () => {
      this.tries = 0;
      this.heardAt = performance.now();
      for (const { state } of this.shown.values()) state.startAnew();
      this.sayShown();
    };
    socket.onmessage = ({ data }) => this.hear(JSON.parse(data));
    socket.onclose = () => this.closed();
  }

  closed() {
    this.told = "";
    for (const { views } of this.shown.values()) views.forEach((view) => view.fallSilent("no contact with the Jupyter server"));
    this.listing?.fallSilent();
    const wait = AGAIN_MS[Math.min(this.tries, AGAIN_MS.length - 1)];
    this.tries += 1;
    setTimeout(() => {
      this.socket = null;
      this.sayShown();
    }, wait);
  }

  hear(message) {
    this.heardAt = performance.now();
    if (message.beat) {
      for (const { views } of this.shown.values()) views.forEach((view) => view.hear());
      return;
    }
    if (message.runs) return this.listing?.take(message.runs);
    const entry = this.shown.get(keyOf(message));
    if (!entry) return;
    if (message.change) entry.state.apply(message.change);
    const isLast = message.refused ? message.refused.code !== "unreachable" : entry.state.head?.terminal;
    if (isLast) entry.overAt ??= performance.now();
    for (const view of entry.views) view.take(message);
  }
}

function isOver({ overAt }) {
  return performance.now() - overAt > OVER_AFTER_MS;
}
