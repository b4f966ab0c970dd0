"""What a notebook's display() is on a rank: IPython's calls, matplotlib's figures, tqdm's bars."""
