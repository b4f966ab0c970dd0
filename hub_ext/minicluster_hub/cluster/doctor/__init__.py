"""Finds problems of the cluster, with a remedy for each.

A short-lived service runs a probe on every node (probe, meter; their messages are in messages). The probes'
reports and the Swarm manager's answers are facts (gather, facts). Pure checks turn facts into findings. Each
module of checks lists its checks in CHECKS; checks.node also has the probe's measurements of a node.
"""
