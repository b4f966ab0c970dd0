// Text for a terminal as nodes of a page: with its colours, and with what it overwrites left out.

import { element } from "./service.js";

const COLOUR = /\x1b\[([\d;:]*)m/;
const OTHERS = /\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-Z\\-~])/g;
const STEPS = [0, 95, 135, 175, 215, 255];

// style: what is set at the text's start; changed to what is set at its end.
export function coloured(text, style) {
  const parts = overwritten(text).split(COLOUR);
  const nodes = [];
  for (let at = 0; at < parts.length; at += 2) {
    if (at) {
      change(style, parts[at - 1]);
    }
    if (parts[at]) {
      nodes.push(styled(parts[at], style));
    }
  }
  return nodes;
}

// A carriage return goes back to the line's start, as in a terminal (progress bars).
function overwritten(text) {
  const plain = text.replace(OTHERS, "").replaceAll("\r\n", "\n");
  return plain.replace(/[^\n]*\r(?=[^\n])/g, "");
}

function styled(text, { bold, italic, underline, colour, background }) {
  if (!(bold || italic || underline || colour || background)) {
    return text;
  }
  const names = [bold && "fw-bold", italic && "fst-italic", underline && "text-decoration-underline"];
  const made = element("span", { className: names.filter(Boolean).join(" ") }, text);
  made.style.color = colour ?? "";
  made.style.backgroundColor = background ?? "";
  return made;
}

// Apply one sequence "Select Graphic Rendition" (ECMA-48).
function change(style, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const code = numbers[at];
    if (code === 38 || code === 48) {
      const [colour, used] = extended(numbers.slice(at + 1));
      style[code === 38 ? "colour" : "background"] = colour;
      at += used;
    } else {
      set(style, code);
    }
  }
}

function set(style, code) {
  if (code === 0) {
    Object.keys(style).forEach((name) => delete style[name]);
  } else if (code === 1 || code === 22) {
    style.bold = code === 1;
  } else if (code === 3 || code === 23) {
    style.italic = code === 3;
  } else if (code === 4 || code === 24) {
    style.underline = code === 4;
  } else if (code === 39 || code === 49) {
    delete style[code === 39 ? "colour" : "background"];
  } else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
    style.colour = named(code >= 90 ? code - 82 : code - 30);
  } else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) {
    style.background = named(code >= 100 ? code - 92 : code - 40);
  }
}

const named = (number) => `var(--mc-ansi-${number})`;

// Returns a colour of 256 or of all, and how many numbers say it.
function extended([kind, ...rest]) {
  const byte = (value) => Math.min(255, Math.max(0, value || 0));
  if (kind === 2) {
    return [`rgb(${rest.slice(0, 3).map(byte).join(", ")})`, 4];
  }
  const number = byte(rest[0]);
  if (number < 16) {
    return [named(number), 2];
  }
  if (number >= 232) {
    const grey = 8 + 10 * (number - 232);
    return [`rgb(${grey}, ${grey}, ${grey})`, 2];
  }
  const place = number - 16;
  const [red, green, blue] = [Math.floor(place / 36), Math.floor(place / 6) % 6, place % 6].map((step) => STEPS[step]);
  return [`rgb(${red}, ${green}, ${blue})`, 2];
}
