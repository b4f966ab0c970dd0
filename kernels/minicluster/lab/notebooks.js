// Panels of cells whose job the notebook does not name: the page was closed before it was saved, or another page
// submitted the job. Such a panel stands in the cell, not in the document, until the job has ended.

import { MIME, isJob } from "./renderer.js";
import { saveInTurn } from "./saves.js";

const ASK_AFTER_MS = 3000;

export function findAgain(tracker, server, Renderer) {
  const lost = (panel) => new LostPanels(panel, server, Renderer);
  tracker.forEach(lost);
  tracker.widgetAdded.connect((_, panel) => lost(panel));
}

class LostPanels {
  constructor(panel, server, Renderer) {
    this.panel = panel;
    this.server = server;
    this.Renderer = Renderer;
    this.found = new Map(); // a cell's model -> its renderer
    this.asking = 0;
    saveInTurn(panel.context);
    panel.context.ready.then(() => this.look(true));
    // A cell runs, here or in another page, or the document was read from disk again.
    panel.sessionContext.statusChanged.connect((_, status) => status === "busy" && this.askSoon());
    panel.context.fileChanged.connect(() => this.askSoon());
  }

  askSoon() {
    this.asking ||= setTimeout(() => {
      this.asking = 0;
      this.look(false);
    }, ASK_AFTER_MS);
  }

  // first: the page was just opened, so jobs that ended after the last save are shown, too.
  async look(first) {
    if (this.panel.isDisposed || !this.hasCells()) return;
    const path = this.panel.context.localPath ?? this.panel.context.path;
    const answer = await this.server.ask(`jobs?path=${encodeURIComponent(path)}`).catch(() => ({ jobs: [] }));
    const newest = new Map();
    for (const job of answer.jobs) if (!(newest.get(job.cell)?.job > job.job)) newest.set(job.cell, job);
    for (const job of newest.values()) if (first || job.open) await this.show(job);
  }

  hasCells() {
    return this.panel.content.widgets.some((cell) => cell.model.type === "code" && /^\s*%/m.test(cell.model.sharedModel.getSource()));
  }

  async show({ cell: id, service, job, made }) {
    const cell = this.panel.content.widgets.find((one) => one.model.id === id && one.model.type === "code");
    if (!cell) return;
    await cell.ready;
    if (cell.isDisposed || this.found.has(cell.model) || isShown(cell, job)) return;
    const view = new this.Renderer();
    view.keep = (data) => cell.model.outputs.add({ output_type: "display_data", data, metadata: {} });
    view.showJob({ service, job, made });
    this.found.set(cell.model, view);
    cell.layout.addWidget(view);
    this.removeWhenItRunsAgain(cell, view);
  }

  removeWhenItRunsAgain(cell, view) {
    const outputs = cell.model.outputs;
    const onChange = (_, change) => {
      if (change.type !== "add") return;
      outputs.changed.disconnect(onChange);
      this.found.delete(cell.model);
      view.dispose();
    };
    outputs.changed.connect(onChange);
    view.disposed.connect(() => this.found.delete(cell.model));
  }
}

// Whether the cell shows this job itself, or will.
function isShown(cell, job) {
  const future = cell.outputArea.future;
  if (future && !future.isDisposed) return true;
  return cell.model.outputs.toJSON().some((output) => {
    const shown = output.data?.[MIME];
    return isJob(shown) && shown.job === job;
  });
}
