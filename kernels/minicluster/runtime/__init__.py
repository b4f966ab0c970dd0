"""What runs inside a task: the agent, the zygote, and the ranks.

Three kinds of processes, so that none can hold up the others:

- the agent (agent.py): asyncio, never imports torch; speaks to the job service;
- the zygote (zygote.py): single-threaded, has imported torch; forks ranks and the store;
- ranks (rank.py) and the store (forked.py): forked from the zygote, one attempt long.
"""
