"""The cluster's registry: its settings, its relay, and pushes of images into it."""
