"""What a person sees of a job: panel, plots, tables, text."""
