"""How ranks exchange gradients or weights: what `--comm` chooses, and how it chooses by itself."""
