"""What a job is: its states, its records, and the pure decisions about its gangs."""
