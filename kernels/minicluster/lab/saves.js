// One save of a notebook after the other. JupyterLab looks at the file before it saves: a save by hand that begins
// while the panel's own is under way would find that file newer than what it knows, and ask which of the two to lose.

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
