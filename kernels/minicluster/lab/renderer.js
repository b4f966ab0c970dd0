// A job in a notebook: the saved picture until data arrives, then the live panel.

import { around, cellOf, notebookOf, waitsIn } from "./kernels.js";
import { Panel } from "./panel.js";
import { keyOf } from "./stream.js";

export const MIME = "application/vnd.minicluster.job+json";
const SAVED_AFTER_MS = 1500; // Mostly the service is faster, and nothing flickers.
const LOOK_MS = 1000;
const KEEP_AFTER_MS = 3000; // A running kernel writes the final picture itself.

export function isJob(told) {
  return typeof told?.service === "string" && Number.isInteger(told.job) && typeof told.made === "number";
}

// number: of a session's cell; 0: the whole job.
function named({ service, job, made, number = 0 }) {
  return { service, job, made, number };
}

// saves: whether JupyterLab saves notebooks by itself.
export function rendererOf(Widget, stream, rendermime, saves) {
  const rich = ["text/markdown", "text/latex"].map((mime) => [mime, (text) => drawnByLab(rendermime, mime, text)]);
  return class JobRenderer extends Widget {
    constructor() {
      super();
      this.addClass("mc-job");
      this.keep = null; // Writes the final picture into the notebook.
    }

    // JupyterLab calls this whenever the output changes.
    async renderModel(model) {
      this.keep = (data) => model.setData({ data });
      const told = model.data[MIME];
      if (isJob(told)) this.showJob(named(told), model.data["text/html"]);
    }

    showJob(job, html = "") {
      this.html = html;
      if (this.job && keyOf(job) === keyOf(this.job)) return;
      this.leave();
      this.job = job;
      this.waiting = setTimeout(() => this.showSaved(""), SAVED_AFTER_MS);
      this.waited = null;
      this.looking = setInterval(() => this.lookAtKernel(), LOOK_MS);
      this.state = stream.add(job, this);
      if (this.state.head) this.take({ change: {} });
    }

    get live() {
      const future = around(this, "future")?.future;
      return Boolean(future && !future.isDisposed);
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
      else this.showSaved(message);
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

    // Says whether results will come. A cell for which the kernel waits has `[*]`, as before the page was closed.
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

    // The job runs without the page, so its cell must be saved.
    saveOnce({ context }) {
      if (this.saved || this.state.head.terminal) return;
      this.saved = true;
      if (saves() && context.model.dirty && !context.model.readOnly) context.save().catch(() => {});
    }

    askToKeep() {
      if (!this.isDisposed && !this.live) stream.askToKeep(this.job, this.waited);
    }

    // The saved picture says itself when it was made.
    async showSaved(why) {
      clearTimeout(this.waiting);
      const saved = rendermime.createRenderer("text/html");
      await saved.renderModel({ data: { "text/html": this.html }, metadata: {}, trusted: false, setData() {} });
      if (this.isDisposed || this.panel) return;
      const line = document.createElement("div");
      line.className = "mc-silence";
      line.textContent = `Job ${this.job.job}: ${why || "waiting for the cluster"}`;
      this.node.replaceChildren(line, saved.node);
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

// As untrusted output: without scripts and styles.
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
