"""Looking inside a run: its pictures, histograms and tables, and where the time of its steps goes."""
