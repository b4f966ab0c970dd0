"""Slots that are not for everybody for a while: which jobs may use them, and what stays free."""
