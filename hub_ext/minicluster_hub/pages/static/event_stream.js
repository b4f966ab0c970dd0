// Server-sent events by fetch: EventSource cannot send the header with the XSRF token.

const RETRY_MS = 2000;
// The service sends something every 15 s. If it is killed, the proxy sends no error, only nothing more.
const QUIET_MS = 40_000;
// A browser opens at most six connections to one server. A page that nobody has seen for so long gives up its own.
const HIDDEN_MS = 20_000;
const FIELDS = { event: "name", id: "id", data: "data" };

// Reads events until `signal` is aborted, and reconnects after each end, from the last event's id on. While nobody sees
// the page it is not connected.
// opened(): connected. lost(status): disconnected; the status is 0 if there was no answer.
// received({ name, id, data }): an event, its data as text.
export async function readEvents(url, { headers, signal, opened, lost, received }) {
  let last = "";
  while (!signal.aborted) {
    let status = 0;
    await untilSeen();
    const hidden = watchHidden();
    try {
      const resume = last ? { "Last-Event-ID": last } : {};
      const either = AbortSignal.any([signal, hidden.signal]);
      const answer = await fetch(url, { headers: { ...headers, ...resume }, cache: "no-store", signal: either });
      status = answer.status;
      if (answer.ok) {
        opened();
        for await (const event of eventsOf(answer.body)) {
          last = event.id || last;
          received(event);
        }
      }
    } catch {
      // The connection broke or was closed.
    } finally {
      hidden.close();
    }
    if (!signal.aborted && !hidden.signal.aborted) {
      lost(status);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

function untilSeen() {
  return new Promise((resolve) => {
    const look = () => {
      if (document.visibilityState === "visible") {
        document.removeEventListener("visibilitychange", look);
        resolve();
      }
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

// Aborts its signal when the page has been hidden for a while.
function watchHidden() {
  const control = new AbortController();
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.visibilityState === "hidden") {
      timer = setTimeout(() => control.abort(), HIDDEN_MS);
    }
  };
  document.addEventListener("visibilitychange", look);
  look();
  return {
    signal: control.signal,
    close() {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    },
  };
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (let piece = await within(reader.read()); !piece.done; piece = await within(reader.read())) {
      const blocks = (text + piece.value).split("\n\n");
      text = blocks.pop();
      yield* blocks.map(eventOf).filter((event) => event.data);
    }
  } finally {
    reader.cancel().catch(() => {}); // usually closed already
  }
}

function within(reading) {
  let timer;
  const quiet = new Promise((_, reject) => {
    timer = setTimeout(reject, QUIET_MS);
  });
  return Promise.race([reading, quiet]).finally(() => clearTimeout(timer));
}

// The job service ends lines by \n, and writes an event's data as one line.
function eventOf(block) {
  const event = { name: "message", id: "", data: "" };
  for (const line of block.split("\n")) {
    const end = line.indexOf(": ");
    const name = FIELDS[line.slice(0, end)];
    if (name) {
      event[name] = line.slice(end + 2);
    }
  }
  return event;
}
