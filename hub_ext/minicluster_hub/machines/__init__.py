"""What machines and ranks use of CPU, memory, network and GPUs: now, and in the past."""
