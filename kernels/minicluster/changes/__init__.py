"""What a cell changed in place comes back into the notebook's own objects.

aspects.py, arrays.py and inspection.py say what an object consists of, one level deep; shared_objects.py
which objects both sides have; tracking.py (on a rank) what has changed since the load; returning.py what of
it goes back; applying.py (in the notebook) puts it there, all or nothing.
"""
