// Whether a notebook's kernel waits for a job and takes its results. The kernel says so every two seconds
// (interrupts.py), also to pages that were opened later.

const VALID_MS = 7_000; // Some of the messages may come late.

const known = new WeakMap(); // a session -> its Waits, which listens while no panel is in view

// Return the notebook, or the cell, around a widget; null outside of one.
export const notebookOf = (widget) => around(widget, "sessionContext", "content");
export const cellOf = (widget) => around(widget, "inputArea");

export function around(widget, ...names) {
  let found = widget.parent;
  while (found && !names.every((name) => name in found)) found = found.parent;
  return found;
}

export function waitsIn(notebook) {
  const session = notebook.sessionContext;
  if (!known.has(session)) known.set(session, new Waits(session));
  return known.get(session);
}

class Waits {
  constructor(session) {
    this.session = session;
    this.heardAt = new Map(); // a job -> when its kernel last said that it waits for it
    this.since = performance.now();
    session.iopubMessage.connect((_, { content }) => this.hear(content?.minicluster));
    session.statusChanged.connect((_, status) => /restarting|dead|terminating/.test(status) && this.heardAt.clear());
    session.kernelChanged.connect(() => this.heardAt.clear());
  }

  hear(job) {
    if (Number.isInteger(job?.job)) this.heardAt.set(`${job.job} ${job.made}`, performance.now());
  }

  // Returns true or false, null while it is unknown.
  isFor({ job, made }) {
    const now = performance.now();
    if (now - this.heardAt.get(`${job} ${made}`) < VALID_MS) return true;
    const kernel = this.session.session?.kernel;
    const isSure = !kernel || kernel.status === "idle" || now - this.since > VALID_MS;
    return this.session.isReady && isSure ? false : null;
  }
}
