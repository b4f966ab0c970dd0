"""From a policy's plan to slots on nodes: kept, shrunk, placed, moved, grown."""
