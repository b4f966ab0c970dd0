"""Ranks of different speed: each takes as many samples of a step as it computes in the same time."""
