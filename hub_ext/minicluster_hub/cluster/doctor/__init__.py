"""Finds problems of the cluster, with a remedy for each.

A short-lived service runs a probe on every node (probe, meter; their messages are in messages). The
probes' reports and the answers of the Swarm's manager are facts (gather, facts). Pure checks turn facts into
findings. A module of checks lists them in CHECKS; checks.node also has the probe's measurements of a node.
"""
