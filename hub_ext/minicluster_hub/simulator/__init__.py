"""Simulates jobs of a trace, or of the job service, under the job service's policies and placements."""
