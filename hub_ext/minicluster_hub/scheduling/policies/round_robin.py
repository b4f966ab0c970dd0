"""Schedulearn's round robin: first in, first out, and each job on the next node in turn.

The turn is among nodes, not in time, so it is the placement's part (`placement/round_robin.py`), and this
policy is only FIFO's order under that name; the turn is read from the job's number, not remembered.
After Schedulearn, a light elastic learning platform made of microservices, whose round robin takes the next
server each time a job starts.
"""

from __future__ import annotations

from minicluster_hub.scheduling.policies.fifo import Fifo


class RoundRobin(Fifo):
    pass
