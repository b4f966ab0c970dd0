"""What policies plan with: who is served in which order, trial placing, shares, estimates."""
