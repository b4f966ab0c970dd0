"""Replays jobs of a trace, or of the service, under the job service's policies and placements."""
