"""Runs tasks as steps of Slurm's jobs: Slurm decides when and where, and accounts for it."""
