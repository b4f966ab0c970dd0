"""Who used how much, and who may: accounting, quotas, reservations, reports."""
