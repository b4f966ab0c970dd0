// What JupyterLab loads of a prebuilt extension: a container of modules, as webpack's module federation makes
// them. Written by hand, it needs no build; the names are JupyterLab's own, and tests/browser holds them.

(() => {
  const NAME = "minicluster";
  const CORE = ["CORE_FEDERATION", "@jupyterlab/application-top"];
  const here = document.currentScript.src;
  let scope = {};

  // Returns a module that JupyterLab shares: the copy that it uses itself.
  async function shared(name) {
    const versions = Object.values(scope[name] ?? {});
    const own = versions.find((one) => one.loaded) ?? versions.find((one) => CORE.includes(one.from)) ?? versions[0];
    if (!own) throw new Error(`minicluster: this JupyterLab does not share ${name}`);
    return (await own.get())();
  }

  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB[NAME] = {
    init(given) {
      scope = given;
    },
    async get() {
      const { plugins } = await import(new URL("index.js", here).href);
      const stylesheets = ["panel.css", "runs.css"].map((name) => new URL(name, here).href);
      const module = { __esModule: true, default: await plugins(shared, stylesheets) };
      return () => module;
    },
  };
})();
