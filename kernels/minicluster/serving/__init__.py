"""%serve: a model of the notebook answers requests over HTTP."""
