// One row of the list of runs. Its box and its star stay the same elements, so that they keep the focus.

import { dayTime, element, tellOf, url, user } from "../service.js";
import { runTimeCell, stateBadge } from "../job_parts.js";
import { swatch } from "./chart.js";
import { setLabels } from "./labels.js";
import { numberText } from "./numbers.js";

const NOTE_CHARACTERS = 120;

export class RunRow {
  // tick(run, on): returns whether the run is ticked then. tagged(tag): the user picked a tag. changed(): reload.
  constructor(run, { tick, tagged, changed }) {
    this.tagged = tagged;
    this.node = element("tr", { "data-run": run.id });
    this.box = element("input", { type: "checkbox", className: "form-check-input" });
    this.box.addEventListener("change", () => {
      this.box.checked = tick(this.run, this.box.checked);
      this.node.classList.toggle("mc-ticked", this.box.checked);
    });
    this.colour = element("div", {});
    this.star = element("button", { type: "button", className: "btn btn-sm p-0 mc-star" });
    this.star.addEventListener("click", () => {
      tellOf("favourite", setLabels(this.run.id, { favourite: !this.run.favourite }).then(changed));
    });
    this.fixed = { tick: element("td", {}, this.box, this.colour), favourite: element("td", {}, this.star) };
  }

  show(run, columns, isTicked) {
    this.run = run;
    this.box.checked = isTicked;
    this.box.setAttribute("aria-label", `Compare run ${run.id}, ${run.name}`);
    this.node.classList.toggle("mc-ticked", isTicked);
    this.star.textContent = run.favourite ? "★" : "☆";
    this.star.setAttribute("aria-pressed", String(run.favourite));
    this.star.setAttribute("aria-label", `Favourite: run ${run.id}`);
    this.star.disabled = run.owner !== user;
    const cells = columns.map((column) => this.fixed[column.kind] ?? element("td", { className: "mc-cell" }, ...this.#parts(column)));
    this.#put(cells);
    return this;
  }

  setColour(colour) {
    this.colour.replaceChildren(colour === undefined ? "" : swatch(colour));
  }

  // Cells with a control stay where they are, and those with the focus if they are as before.
  #put(cells) {
    if (this.node.children[0] !== cells[0]) {
      this.node.replaceChildren(...cells);
      return;
    }
    [...this.node.children].slice(cells.length).forEach((cell) => cell.remove());
    cells.forEach((cell, at) => {
      const before = this.node.children[at];
      if (!before) {
        this.node.append(cell);
      } else if (before !== cell && !(before.contains(document.activeElement) && before.isEqualNode(cell))) {
        before.replaceWith(cell);
      }
    });
  }

  #parts({ kind, metric }) {
    const { run } = this;
    switch (kind) {
      case "name":
        return [this.#name()];
      case "owner":
        return [run.owner];
      case "state":
        return [stateBadge(run)];
      case "created":
        return [element("span", { className: "mc-number" }, dayTime(run.created_at))];
      case "duration":
        return [runTimeCell(run)];
      case "gpus":
        return [element("span", { className: "mc-number" }, run.gpus ? String(run.gpus) : "")];
      default: {
        const last = run.metrics[metric];
        return [element("span", { className: "mc-number" }, last ? numberText(last.value) : "")];
      }
    }
  }

  #name() {
    const { run } = this;
    const link = element("a", { href: `${url}runs/${run.id}` }, `${run.id} ${run.name}`);
    const tags = run.tags.map((tag) => this.#tag(tag));
    const note = run.note.length > NOTE_CHARACTERS ? `${run.note.slice(0, NOTE_CHARACTERS)}…` : run.note;
    const below = [run.error && run.state === "failed" ? run.error : "", note].filter(Boolean).map((text) =>
      element("div", { className: "small text-body-secondary" }, text),
    );
    return element("div", { className: "mc-name" }, link, ...tags, ...below);
  }

  #tag(tag) {
    const button = element("button", { type: "button", className: "badge text-bg-secondary border-0 ms-1" }, tag);
    button.setAttribute("aria-label", `Only runs with the tag ${tag}`);
    button.addEventListener("click", () => this.tagged(tag));
    return button;
  }
}
