"""Usage of slots and limits on it: accounting, quotas, reservations, reports."""
