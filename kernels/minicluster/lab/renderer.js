// A job in a notebook: what the notebook kept of it until something is heard, then the live panel.

import { cellOf, notebookOf, waitsIn } from "./kernels.js";
import { Panel } from "./panel.js";
import { keyOf } from "./stream.js";

export const MIME = "application/vnd.minicluster.job+json";
const KEPT_AFTER_MS = 1500; // Mostly the service is faster, and nothing flickers.
const LOOK_MS = 1000;
const KEEP_AFTER_MS = 3000; // A kernel that is still there writes the end itself.

export function isJob(told) {
  return typeof told?.service === "string" && Number.isInteger(told.job) && typeof told.made === "number";
}

// saves: whether notebooks are saved by themselves.
export function rendererOf(Widget, stream, rendermime, saves) {
  const rich = ["text/markdown", "text/latex"].map((mime) => [mime, (text) => drawnByLab(rendermime, mime, text)]);
  return class JobRenderer extends Widget {
    constructor() {
      super();
      this.addClass("mc-job");
      this.keep = null; // Writes the end into the notebook.
    }

    // What JupyterLab calls whenever the output changes.
    async renderModel(model) {
      this.keep = (data) => model.setData({ data });
      const told = model.data[MIME];
      if (isJob(told)) this.showJob({ service: told.service, job: told.job, made: told.made }, model.data["text/html"]);
    }

    showJob(job, html = "") {
      this.html = html;
      if (this.job && keyOf(job) === keyOf(this.job)) return;
      this.leave();
      this.job = job;
      this.waiting = setTimeout(() => this.showKept(""), KEPT_AFTER_MS);
      this.waited = null;
      this.looking = setInterval(() => this.lookAtKernel(), LOOK_MS);
      this.state = stream.add(job, this);
      if (this.state.head) this.take({ change: {} });
    }

    get live() {
      let area = this.parent;
      while (area && !("future" in area)) area = area.parent;
      return Boolean(area?.future && !area.future.isDisposed);
    }

    take({ change, refused, picture }) {
      if (refused) this.refused(refused);
      if (change && this.state.head) this.showPanel();
      if (picture) this.keep?.(picture);
    }

    hear() {
      this.panel?.hear();
    }

    fallSilent(why) {
      this.panel?.fallSilent(why);
    }

    refused({ message }) {
      if (this.panel) this.panel.fallSilent(message);
      else this.showKept(message);
    }

    showPanel() {
      clearTimeout(this.waiting);
      if (!this.panel) {
        this.node.replaceChildren();
        const box = this.node.appendChild(document.createElement("div"));
        this.panel = new Panel(box, () => stream.stop(this.job), this.state, rich);
      }
      this.panel.hear();
      this.panel.redraw();
      this.lookAtKernel();
      if (this.state.head.terminal) this.keeping ??= setTimeout(() => this.askToKeep(), KEEP_AFTER_MS);
    }

    // Say whether results will come; a cell whose kernel is busy for it has `[*]`, as before the page was closed.
    lookAtKernel() {
      const notebook = this.isAttached ? notebookOf(this) : undefined;
      if (!this.panel || !notebook) return;
      if (this.live) return this.saveOnce(notebook);
      const waits = waitsIn(notebook);
      if (this.state.head.terminal) return this.lookNoMore();
      this.waited = waits.isFor(this.job);
      this.panel.say(aboutResults(this.waited, this.job.job));
      this.prompt(this.waited ? "*" : "");
    }

    lookNoMore() {
      clearInterval(this.looking);
      this.panel.say("");
      this.prompt("");
    }

    prompt(text) {
      const input = cellOf(this)?.inputArea;
      if (!input || (this.prompted ?? "") === text) return;
      this.prompted = text;
      input.setPrompt(text || `${cellOf(this).model.executionCount ?? ""}`);
    }

    // The job goes on without the page: so must the cell that it came from.
    saveOnce({ context }) {
      if (this.saved || this.state.head.terminal) return;
      this.saved = true;
      if (saves() && context.model.dirty && !context.model.readOnly) context.save().catch(() => {});
    }

    askToKeep() {
      if (!this.isDisposed && !this.live) stream.askToKeep(this.job, this.waited);
    }

    // The picture that the notebook keeps says itself when it was taken.
    async showKept(why) {
      clearTimeout(this.waiting);
      const kept = rendermime.createRenderer("text/html");
      await kept.renderModel({ data: { "text/html": this.html }, metadata: {}, trusted: false, setData() {} });
      if (this.isDisposed || this.panel) return;
      const line = document.createElement("div");
      line.className = "mc-silence";
      line.textContent = `Job ${this.job.job}: ${why || "waiting for news from the cluster"}`;
      this.node.replaceChildren(line, kept.node);
    }

    leave() {
      clearTimeout(this.waiting);
      clearTimeout(this.keeping);
      clearInterval(this.looking);
      this.panel?.dispose();
      this.panel = null;
      if (this.job) stream.remove(this.job, this);
    }

    dispose() {
      if (!this.isDisposed) this.leave();
      super.dispose();
    }
  };
}

// As in any output that is not trusted: no scripts, no styles.
function drawnByLab(rendermime, mime, text) {
  const box = document.createElement("div");
  box.className = "mc-lab";
  const renderer = rendermime.createRenderer(mime);
  const drawn = renderer.renderModel({ data: { [mime]: text }, metadata: {}, trusted: false, setData() {} });
  drawn.then(() => rendermime.latexTypesetter?.typeset(renderer.node));
  box.append(renderer.node);
  return box;
}

function aboutResults(waited, job) {
  if (waited) return "The kernel still runs this cell: its results come into the notebook";
  return waited === false ? `No kernel waits for its results. To have them: %distribute attach ${job}` : "";
}
