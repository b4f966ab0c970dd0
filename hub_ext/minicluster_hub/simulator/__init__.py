"""Replays jobs of a trace, or of the service, under the job service's own policies and placements."""
