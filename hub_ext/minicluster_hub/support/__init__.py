"""Small things that know nothing of jobs: a clock, notifications, rates, TLS, processes."""
