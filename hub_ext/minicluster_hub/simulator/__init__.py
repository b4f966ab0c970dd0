"""A cluster on paper: the same policies and placements as in the job service, over jobs of a trace."""
