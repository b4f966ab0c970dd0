// The JupyterLab extension: shows a panel where a notebook's output names a job, and the user's runs in a sidebar.
// The data comes from the job service through the user's own Jupyter server, so both are live without the kernel, and
// after a reload.

import { addCommands } from "./commands.js";
import { ICON } from "./icon.js";
import { findAgain } from "./notebooks.js";
import { MIME, rendererOf } from "./renderer.js";
import { sidebarOf } from "./sidebar.js";
import { Stream } from "./stream.js";

export async function plugins(shared, stylesheets) {
  const names = ["@jupyterlab/rendermime", "@jupyterlab/notebook", "@jupyterlab/docmanager", "@jupyterlab/services", "@lumino/widgets"];
  const [rendering, notebooks, documents, services, widgets] = await Promise.all(names.map(shared));
  // The page's one connection, for both plugins.
  let link = null;
  const linkOf = (app) => {
    if (!link) {
      stylesheets.forEach(addStylesheet);
      const server = serverOf(app.serviceManager.serverSettings, services.ServerConnection);
      link = { server, stream: new Stream(server) };
    }
    return link;
  };
  const panels = panelPlugin({ rendering, notebooks, documents, widgets, linkOf });
  const runs = await runsPlugin({ shared, notebooks, documents, widgets, linkOf }).catch((error) => console.warn(error));
  return runs ? [panels, runs] : [panels];
}

function panelPlugin({ rendering, notebooks, documents, widgets, linkOf }) {
  return {
    id: "minicluster:panel",
    description: "Shows distributed jobs under their cells, live from the job service.",
    autoStart: true,
    requires: [rendering.IRenderMimeRegistry, notebooks.INotebookTracker],
    optional: [documents.IDocumentManager],
    activate(app, rendermime, tracker, manager) {
      const { server, stream } = linkOf(app);
      const Renderer = rendererOf(widgets.Widget, stream, rendermime, () => manager?.autosave ?? false);
      // Preferred to widgets and HTML, which are for other front ends.
      rendermime.addFactory({ safe: true, mimeTypes: [MIME], createRenderer: () => new Renderer() }, -10);
      findAgain(tracker, server, Renderer);
    },
  };
}

// A front end may lack some of these: Jupyter Notebook has no launcher of JupyterLab's kind.
async function runsPlugin({ shared, notebooks, documents, widgets, linkOf }) {
  const maybe = (name) => shared(name).catch(() => ({}));
  const [{ LabIcon }, application, apputils, { ILauncher }, { IMainMenu }] = await Promise.all([
    shared("@jupyterlab/ui-components"),
    ...["@jupyterlab/application", "@jupyterlab/apputils", "@jupyterlab/launcher", "@jupyterlab/mainmenu"].map(maybe),
  ]);
  const optional = [documents.IDocumentManager, application.ILayoutRestorer, apputils.ICommandPalette, ILauncher, IMainMenu];
  const tokens = optional.filter(Boolean);
  return {
    id: "minicluster:runs",
    description: "Shows the user's runs beside the notebook, with a menu of Minicluster's pages.",
    autoStart: true,
    requires: [notebooks.INotebookTracker],
    optional: tokens,
    activate(app, tracker, ...given) {
      const [manager, restorer, palette, launcher, menus] = optional.map((token) => given[tokens.indexOf(token)] ?? null);
      const icon = new LabIcon({ name: "minicluster:runs", svgstr: ICON });
      const Sidebar = sidebarOf({ Widget: widgets.Widget, ...linkOf(app), tracker, app, documents: manager, icon });
      const sidebar = new Sidebar();
      app.shell.add(sidebar, "left", { rank: 650 });
      restorer?.add(sidebar, sidebar.id);
      addCommands({ app, sidebar, icon, Menu: widgets.Menu, menus, palette, launcher });
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
