"""The job service's API: REST and event streams. Decisions are made in control/ and scheduling/."""
