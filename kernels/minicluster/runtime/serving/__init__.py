"""The replica of a served model, in its rank: LitServe answers requests, and a process of its own computes."""
