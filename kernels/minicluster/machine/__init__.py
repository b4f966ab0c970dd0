"""Reads what a machine does: its CPU, memory, network and GPUs. Agents use it, and the job service."""
