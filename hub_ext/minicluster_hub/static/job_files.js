// What a job left in its output folder: looked at when the job changes.

import { address, ask, element, jobId, size } from "./service.js";

const ROWS = 200;

export async function showFiles() {
  const { artifacts, keep_until: until, left } = await ask(`api/jobs/${jobId}/files`);
  document.getElementById("files").hidden = !artifacts.length && !left.length;
  document.getElementById("files-kept").textContent = [
    artifacts.length > ROWS ? `The first ${ROWS} of ${artifacts.length} files.` : "",
    artifacts.length > 1 ? `All of them: %distribute files ${jobId} --to FOLDER.` : "",
    until ? `Kept until ${new Date(until * 1000).toLocaleDateString()}.` : "",
    ...left,
  ]
    .filter(Boolean)
    .join(" ");
  const several = artifacts.some((file) => file.part);
  document.getElementById("file-rows").replaceChildren(...artifacts.slice(0, ROWS).map((file) => row(file, several)));
}

function row(file, several) {
  const path = file.path.split("/").map(encodeURIComponent).join("/");
  const link = address(`api/jobs/${jobId}/files/${path}`, { part: file.part });
  return element(
    "tr",
    {},
    element("td", {}, file.path),
    element("td", {}, several ? `task ${file.part}` : ""),
    element("td", { className: "mc-number" }, size(file.size_bytes)),
    element("td", {}, element("a", { href: link }, "Download")),
  );
}
