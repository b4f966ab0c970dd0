// Server-sent events by fetch: EventSource can send no header, and a token does not belong into an address.

// Reads an answer's body to its end; `hear` gets each event's name, id ("" if it has none) and data.
export async function readEvents(body, hear) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const blocks = (rest + piece.value).split("\n\n");
    rest = blocks.pop();
    blocks.map(eventOf).filter((event) => event.data !== "").forEach(hear);
  }
}

// A line without a name before its colon is a comment: the service sends some to show that it is there.
function eventOf(block) {
  const event = { event: "message", id: "", data: [] };
  for (const line of block.split("\n")) {
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (name === "data") {
      event.data.push(value);
    } else if (name === "event" || name === "id") {
      event[name] = value;
    }
  }
  return { name: event.event, id: event.id, data: event.data.join("\n") };
}
