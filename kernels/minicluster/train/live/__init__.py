"""What stands behind `--fault-tolerant`: ranks that come and go while the others train on.

torchft's manager, lighthouse and state transport decide who takes part in a step; what is here fits
them to a cell: the arithmetic, the share of the data, the words, and the ways in which 0.2.0 would hang.
"""
