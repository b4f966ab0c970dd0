// The files of a job's output folder; loaded again when the job changes.

import { previewButton } from "./file_preview.js";
import { address, ask, element, jobId, size, tellOf } from "./service.js";

const ROWS = 200;
const TENSORBOARD = /tfevents[^/]*$/;
const moreButton = document.getElementById("more-files");
let wanted = ROWS;
let shown = "";

moreButton.addEventListener("click", () => {
  wanted += ROWS;
  tellOf("files", showFiles());
});

export async function showFiles() {
  const { artifacts, keep_until: until, left, more } = await read(wanted);
  moreButton.hidden = !more;
  document.getElementById("files").hidden = !artifacts.length && !left.length;
  document.getElementById("files-kept").textContent = [
    more ? `The first ${artifacts.length} files.` : "",
    artifacts.length > 1 ? `All of them: %distribute files ${jobId} --to FOLDER.` : "",
    until ? `Kept until ${new Date(until * 1000).toLocaleDateString()}.` : "",
    ...left,
  ]
    .filter(Boolean)
    .join(" ");
  // Previews stay open while the job goes on.
  if (shown !== JSON.stringify(artifacts)) {
    shown = JSON.stringify(artifacts);
    document.getElementById("tensorboard")?.toggleAttribute("hidden", !artifacts.some((file) => TENSORBOARD.test(file.path)));
    const several = artifacts.some((file) => file.part);
    document.getElementById("file-rows").replaceChildren(...artifacts.map((file) => row(file, several)));
  }
}

// Reads a number of files, page by page.
async function read(count, after = {}) {
  const page = await ask(`api/jobs/${jobId}/files`, { query: { ...after, limit: ROWS } });
  if (!page.more || count <= ROWS) {
    return page;
  }
  const last = page.artifacts.at(-1);
  const rest = await read(count - ROWS, { after: `${last.part}/${last.path}` });
  return { ...page, artifacts: [...page.artifacts, ...rest.artifacts], more: rest.more };
}

function row(file, several) {
  const path = file.path.split("/").map(encodeURIComponent).join("/");
  const link = address(`api/jobs/${jobId}/files/${path}`, { part: file.part });
  const made = element("tr");
  made.append(
    element("td", {}, file.path),
    element("td", {}, several ? `task ${file.part}` : ""),
    element("td", { className: "mc-number" }, size(file.size_bytes)),
    element("td", {}, element("a", { href: link }, "Download"), " ", previewButton(file, link, made)),
  );
  return made;
}
