"""The ranks' side: the process that forks them, and one rank from its birth to its result."""
