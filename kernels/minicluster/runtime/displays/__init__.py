"""Displays on a rank, as in a notebook: IPython's functions, matplotlib's figures, tqdm's bars."""
