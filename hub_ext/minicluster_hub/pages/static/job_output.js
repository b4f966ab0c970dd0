// A rank's output on the job's page: its lines, and the pictures that it displayed. HTML of a cell is never shown
// here, since it could act as the user who opens the page: its text is shown instead.

import { coloured } from "./ansi.js";
import { element } from "./service.js";

const MARK = /\x1b_mc-(?:(display|update) ([0-9a-f]{8,64})|(end|clear|clear-next))\x1b\\/;
const SVG = "image/svg+xml";
const PICTURES = [SVG, "image/png", "image/jpeg", "image/gif"];
const MOST = 200;

const displays = new Map();

// Takes the displays of a rank; beyond a limit the oldest pictures are dropped.
export function addDisplays(event) {
  for (const display of event.displays) {
    displays.set(display.id, display);
  }
  while (displays.size > MOST) {
    displays.delete(displays.keys().next().value);
  }
}

export function forgetDisplays() {
  displays.clear();
}

// Returns the text in place of skipped bytes. It ends a picture's text, whose end may be among them.
export function leftOut(bytes) {
  return bytes ? `\x1b_mc-end\x1b\\\n[${bytes} bytes left out here; download has all]\n` : "";
}

// Return the nodes for a rank's output.
export function drawn(text) {
  const parts = text.split(MARK);
  const style = {};
  const nodes = coloured(parts[0], style);
  let hidden = false;
  for (let at = 1; at < parts.length; at += 4) {
    const picture = parts[at] === "display" ? pictureOf(displays.get(parts[at + 1])) : null;
    hidden = picture ? true : hidden && parts[at + 2] !== "end";
    nodes.push(picture ?? "", ...(hidden ? [] : coloured(parts[at + 3], style)));
  }
  return nodes;
}

function pictureOf(display) {
  const mime = PICTURES.find((kind) => display?.data[kind]);
  if (!mime) {
    return null;
  }
  // As an image, so that its scripts do not run.
  const data = mime === SVG ? `,${encodeURIComponent(display.data[SVG])}` : `;base64,${display.data[mime]}`;
  const source = `data:${mime}${data}`;
  return element("img", { src: source, alt: display.data["text/plain"] ?? "", className: "mc-displayed" });
}
