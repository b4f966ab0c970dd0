// A job in a notebook: what the notebook kept of it until something is heard, then the live panel.

import { Panel } from "./panel.js";
import { keyOf } from "./stream.js";

export const MIME = "application/vnd.minicluster.job+json";
const KEPT_AFTER_MS = 1500; // Mostly the service is faster, and nothing flickers.
const KEEP_AFTER_MS = 3000; // A kernel that is still there writes the end itself.

export function isJob(told) {
  return typeof told?.service === "string" && Number.isInteger(told.job) && typeof told.made === "number";
}

export function rendererOf(Widget, stream, rendermime) {
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
        this.panel = new Panel(box, () => stream.stop(this.job), this.state);
      }
      this.panel.hear();
      this.panel.redraw();
      if (this.state.head.terminal) this.keeping ??= setTimeout(() => this.askToKeep(), KEEP_AFTER_MS);
    }

    askToKeep() {
      if (!this.isDisposed && !this.live) stream.askToKeep(this.job);
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
