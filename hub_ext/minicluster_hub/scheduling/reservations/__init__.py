"""Reservations, maintenance windows and drained nodes: which slots they take, and which jobs may use them."""
