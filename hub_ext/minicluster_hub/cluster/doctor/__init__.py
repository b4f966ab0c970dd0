"""What is wrong with the cluster, and one sentence of remedy for each trouble.

A short-lived service runs a probe on every node (probe, meter, overlay; messages is what goes to and fro).
Its reports and what the Swarm's manager says are facts (gather, facts). Pure checks make findings of them.
A module of checks lists them in CHECKS; that about a single node (checks.node) also measures what it judges.
"""
