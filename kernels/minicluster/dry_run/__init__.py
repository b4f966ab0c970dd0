"""`%%distribute --dry-run`: a cell's first steps on virtual ranks here, and what they predict."""
