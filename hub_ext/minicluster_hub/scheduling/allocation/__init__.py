"""From a policy's plan to slots on nodes: jobs keep slots, shrink, start, move and grow."""
