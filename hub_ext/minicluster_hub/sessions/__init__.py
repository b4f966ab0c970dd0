"""Sessions: jobs whose ranks stay, and run one cell after the other."""
