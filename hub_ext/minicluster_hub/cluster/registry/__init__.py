"""The cluster's registry: its settings, its relay, and how images get into it."""
