"""The replica of a served model, in its rank: LitServe answers requests, a process of its own computes."""
