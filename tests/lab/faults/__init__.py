"""What goes wrong on a cluster, and what it promises all the same.

`inject` has the faults by name, `promises` the checks by name; the tests put the two together.
"""
