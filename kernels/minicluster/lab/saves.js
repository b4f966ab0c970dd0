// Saves a notebook one save after the other. JupyterLab checks the file before it saves: a save by hand during the
// panel's own save would find a newer file, and ask which of the two to lose.

export function saveInTurn(context) {
  if (Object.hasOwn(context, "save")) return; // The notebook has a second view.
  const save = context.save.bind(context);
  let running = null;
  let waiting = null;
  const saveNow = () => (running = save().finally(() => (running = null)));
  const saveNext = () => {
    waiting = null;
    return saveNow();
  };
  context.save = () => waiting ?? (running ? (waiting = running.then(saveNext, saveNext)) : saveNow());
}
