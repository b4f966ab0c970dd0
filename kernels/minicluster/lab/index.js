// The JupyterLab extension: panels of jobs where a notebook's outputs name them, drawn from the job service through
// the user's own Jupyter server. They are live whatever the kernel does, and come back after a reload.

import { Stream } from "./stream.js";
import { findAgain } from "./notebooks.js";
import { MIME, rendererOf } from "./renderer.js";

export async function plugin(shared, stylesheet) {
  const [{ IRenderMimeRegistry }, { INotebookTracker }, { IDocumentManager }, { ServerConnection }, { Widget }] =
    await Promise.all(
      ["@jupyterlab/rendermime", "@jupyterlab/notebook", "@jupyterlab/docmanager", "@jupyterlab/services", "@lumino/widgets"].map(
        shared,
      ),
    );
  return {
    id: "minicluster:panel",
    description: "Shows distributed jobs under their cells, live from the job service.",
    autoStart: true,
    requires: [IRenderMimeRegistry, INotebookTracker],
    optional: [IDocumentManager],
    activate(app, rendermime, tracker, documents) {
      addStylesheet(stylesheet);
      const server = serverOf(app.serviceManager.serverSettings, ServerConnection);
      const stream = new Stream(server);
      const Renderer = rendererOf(Widget, stream, rendermime, () => documents?.autosave ?? false);
      // Before widgets and HTML, which are there for other front ends.
      rendermime.addFactory({ safe: true, mimeTypes: [MIME], createRenderer: () => new Renderer() }, -10);
      findAgain(tracker, server, Renderer);
    },
  };
}

function addStylesheet(href) {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = href;
  document.head.append(link);
}

// The server's addresses below /minicluster, with the page's own log-in.
function serverOf(settings, ServerConnection) {
  return {
    async ask(path, init = {}) {
      const answer = await ServerConnection.makeRequest(`${settings.baseUrl}minicluster/${path}`, init, settings);
      const told = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error(told.message || `the Jupyter server answered ${answer.status}`);
      return told;
    },
    socket(path) {
      const token = settings.appendToken && settings.token ? `?token=${encodeURIComponent(settings.token)}` : "";
      return new settings.WebSocket(`${settings.wsUrl}minicluster/${path}${token}`);
    },
  };
}
