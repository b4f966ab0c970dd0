"""The ranks' side: the process that forks them, and one rank from its fork to its result."""
