// The JupyterLab extension: shows a panel where a notebook's output names a job. The data comes from the job service
// through the user's own Jupyter server, so panels are live without the kernel, and after a reload.

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
      // Preferred to widgets and HTML, which are for other front ends.
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

// Requests to the server's addresses below /minicluster, with the page's own login.
function serverOf(settings, ServerConnection) {
  return {
    async ask(path, init = {}) {
      const answer = await ServerConnection.makeRequest(`${settings.baseUrl}minicluster/${path}`, init, settings);
      const body = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error(body.message || `the Jupyter server answered ${answer.status}`);
      return body;
    },
    socket(path) {
      const token = settings.appendToken && settings.token ? `?token=${encodeURIComponent(settings.token)}` : "";
      return new settings.WebSocket(`${settings.wsUrl}minicluster/${path}${token}`);
    },
  };
}
