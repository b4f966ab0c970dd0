"""Schedulearn's round robin: first in, first out, and each job on the next node in turn.

The turn is among nodes, not in time: the placement `round_robin` does it, from the job's number. This policy
is only FIFO under that name. In Schedulearn, an elastic learning platform made of microservices, each job
that starts gets the next server.
"""

from __future__ import annotations

from minicluster_hub.scheduling.policies.fifo import Fifo


class RoundRobin(Fifo):
    pass
