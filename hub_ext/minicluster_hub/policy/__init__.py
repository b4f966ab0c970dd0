"""The policy and the placement in force: checked, swapped between two ticks, taken back when they fail."""
