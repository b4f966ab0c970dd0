"""Earlier runs in a notebook: the table of `mc.runs()`, their curves, and `%distribute rerun`."""
