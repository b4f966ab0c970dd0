// What is remembered of a run besides its metrics, as text: for its own page, and to compare runs. Pure.

const DIGEST_CHARACTERS = 12;
const short = (digest) => digest.replace("sha256:", "").slice(0, DIGEST_CHARACTERS);

// Returns [title, text] of each fact; "" where there is none. details: of api/runs/ID.
export function factsOf(details) {
  const { run, origin } = details;
  return [
    ["Options", origin.line],
    ["Script", origin.script],
    ["Notebook", run.notebook],
    ["Seed", details.seed === null ? "" : String(details.seed)],
    ["Ranks", run.world_size ? String(run.world_size) : ""],
    ["GPUs", run.gpus ? String(run.gpus) : ""],
    ["Nodes", run.nodes.join(", ")],
    ["Image", imageText(details)],
    ["Packages unlike the image's", linesOf(origin.packages, (name, version) => (version ? `${name} ${version}` : name))],
    ["Data sets", details.data.map(dataText).join("\n")],
    ["Commit", commitText(origin.commit)],
    ["Variables", linesOf(details.env, (name, value) => `${name}=${value}`)],
    ["Time limit", details.timeout_s ? `${details.timeout_s} s` : ""],
  ];
}

const linesOf = (entries, text) => Object.entries(entries).sort().map(([name, value]) => text(name, value)).join("\n");

function imageText({ image, image_name: name }) {
  return image ? [name, short(image.split("@").at(-1))].filter(Boolean).join(" ") : "the cluster's own";
}

function dataText({ name, owner, manifest_sha256: version }) {
  const whole = owner && !name.includes("/") ? `${owner}/${name}` : name;
  return version ? `${whole}, version ${short(version)}` : whole;
}

function commitText(commit) {
  if (!commit) {
    return "";
  }
  const changed = commit.changed ? `, and ${commit.changed} changed ${commit.changed === 1 ? "file" : "files"}` : "";
  return `${commit.commit.slice(0, DIGEST_CHARACTERS)}${commit.branch ? ` (${commit.branch})` : ""}${changed}`;
}
