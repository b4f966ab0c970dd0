"""The files of a job on a node: its output folder, and its snapshots."""
