"""The implementation of `--fault-tolerant`: ranks come and go while the others continue to train.

torchft's manager, lighthouse and state transport decide which ranks take part in a step. This package adapts
them to a cell: gradient averaging, the share of the data, messages, and remedies where 0.2.0 would hang.
"""
