"""What is wrong with the cluster, and one sentence of remedy for each trouble.

A short-lived service runs a probe on every node (probe, links); its reports and what the Swarm's manager
says are facts (report, facts, gather); pure checks make findings of them (checks_*); a table shows them.
"""
