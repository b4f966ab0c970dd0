"""Shows jobs to people: panel, plots, tables, text."""
