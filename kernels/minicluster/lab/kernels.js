// Whether a notebook's kernel waits for a job, so that its results come into the notebook by themselves. The kernel
// says so every two seconds (interrupts.py): to every page, also to one that was opened after the cell had begun.

const SAID_FOR_MS = 7_000; // Some of the messages may come late.

const known = new WeakMap(); // a session -> its Waits, which hears while no panel of it is in view

// Returns the notebook around a widget, undefined where it stands elsewhere.
export function notebookOf(widget) {
  let around = widget.parent;
  while (around && !("sessionContext" in around && "content" in around)) around = around.parent;
  return around ?? undefined;
}

export function cellOf(widget) {
  let around = widget.parent;
  while (around && !("inputArea" in around)) around = around.parent;
  return around ?? undefined;
}

export function waitsIn(notebook) {
  const session = notebook.sessionContext;
  if (!known.has(session)) known.set(session, new Waits(session));
  return known.get(session);
}

class Waits {
  constructor(session) {
    this.session = session;
    this.said = new Map(); // a job -> when its kernel said last that it waits for it
    this.since = performance.now();
    session.iopubMessage.connect((_, { content }) => this.hear(content?.minicluster));
    session.statusChanged.connect((_, status) => /restarting|dead|terminating/.test(status) && this.said.clear());
    session.kernelChanged.connect(() => this.said.clear());
  }

  hear(told) {
    if (Number.isInteger(told?.job)) this.said.set(`${told.job} ${told.made}`, performance.now());
  }

  // Returns true or false, null when it is not known yet.
  isFor({ job, made }) {
    const now = performance.now();
    if (now - this.said.get(`${job} ${made}`) < SAID_FOR_MS) return true;
    const kernel = this.session.session?.kernel;
    const isSure = !kernel || kernel.status === "idle" || now - this.since > SAID_FOR_MS;
    return this.session.isReady && isSure ? false : null;
  }
}
