// The commands of JupyterLab's menu Minicluster, of the palette and of the launcher.

const PAGES = [
  ["home", "Home", "home"],
  ["runs", "Runs", "runs"],
  ["sweeps", "Sweeps", "sweeps"],
  ["cluster", "Cluster", "cluster"],
  ["queue", "Queue", "queue"],
];
const CATEGORY = "Minicluster";
const SHOW = "minicluster:show-runs";

// sidebar: has the address of the service's pages. menus, palette, launcher: null where the front end has none.
export function addCommands({ app, sidebar, icon, Menu, menus, palette, launcher }) {
  const { commands } = app;
  commands.addCommand(SHOW, {
    label: "Runs Beside the Notebook",
    caption: "Show your runs on the cluster in the sidebar",
    icon,
    execute: () => app.shell.activateById(sidebar.id),
  });
  for (const [name, label, path] of PAGES) {
    commands.addCommand(`minicluster:open-${name}`, {
      label: (args) => (args.isLauncher ? `Cluster ${label}` : `${label} Page`),
      caption: `Open Minicluster's page ${label} in a new browser tab`,
      icon,
      execute: () => openPage(app, sidebar, path),
    });
  }
  const all = [SHOW, ...PAGES.map(([name]) => `minicluster:open-${name}`)];
  if (menus) menus.addMenu(menuOf(Menu, commands, all), true, { rank: 85 });
  for (const command of all) palette?.addItem({ command, category: CATEGORY });
  launcher?.add({ command: "minicluster:open-home", category: "Other", rank: 0, args: { isLauncher: true } });
}

function menuOf(Menu, commands, all) {
  const menu = new Menu({ commands });
  menu.id = "jp-mainmenu-minicluster";
  menu.title.label = CATEGORY;
  menu.addItem({ command: all[0] });
  menu.addItem({ type: "separator" });
  for (const command of all.slice(1)) menu.addItem({ command });
  return menu;
}

// The address comes with the list of runs.
async function openPage(app, sidebar, path) {
  const { runs } = sidebar;
  if (!runs.pages) await runs.load();
  if (runs.pages) sidebar.open(path);
  else app.shell.activateById(sidebar.id); // It says why.
}
