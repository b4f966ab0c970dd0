// Shows a file of a job below its row: pictures as pictures, text as text, nothing as a page of its own.

import { askFile, element, tell } from "./service.js";

const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml" };
const TEXTS = ["txt", "log", "csv", "tsv", "json", "jsonl", "md", "py", "yaml", "yml", "toml", "ini", "cfg", "xml", "html", "sh", "out", "err"];
const MOST_PICTURE_BYTES = 10_000_000;
const MOST_TEXT_BYTES = 100_000;

// The button for a file's preview in its row of a table; null if it is neither a picture nor text.
export function previewButton(file, address, row) {
  const kind = file.path.split(".").at(-1).toLowerCase();
  const isPicture = kind in PICTURES && file.size_bytes <= MOST_PICTURE_BYTES;
  if (!isPicture && !TEXTS.includes(kind)) {
    return null;
  }
  const button = element("button", { type: "button", className: "btn btn-link p-0 align-baseline", "aria-expanded": "false" }, "Show");
  button.setAttribute("aria-label", `Show ${file.path}`);
  let below = null;
  button.addEventListener("click", async () => {
    if (below) {
      below.remove();
      below = null;
    } else {
      button.disabled = true;
      try {
        below = underneath(row, await (isPicture ? picture(file, address, PICTURES[kind]) : text(file, address)));
        tell("preview", null);
      } catch (error) {
        tell("preview", error);
      }
      button.disabled = false;
    }
    button.textContent = below ? "Hide" : "Show";
    button.setAttribute("aria-expanded", String(Boolean(below)));
  });
  return button;
}

function underneath(row, content) {
  const made = element("tr", {}, element("td", { colSpan: row.cells.length }, content));
  row.after(made);
  return made;
}

// In an image, so that scripts of an SVG do not run.
async function picture(file, address, type) {
  const data = await (await askFile(address)).blob();
  return element("img", { src: await dataAddress(data, type), alt: file.path, className: "mc-displayed" });
}

// A `data:` address with this content: the pages' policy lets pictures come from nowhere else.
export function dataAddress(content, type) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(new Blob([content], { type }));
  });
}

async function text(file, address) {
  const isCut = file.size_bytes > MOST_TEXT_BYTES;
  const answer = await askFile(address, isCut ? { Range: `bytes=0-${MOST_TEXT_BYTES - 1}` } : {});
  const shown = await answer.text();
  const note = isCut ? `\n… the first ${MOST_TEXT_BYTES} of ${file.size_bytes} bytes` : "";
  return element("pre", { className: "mc-log border rounded p-2 mb-0", tabIndex: 0 }, shown + note);
}
