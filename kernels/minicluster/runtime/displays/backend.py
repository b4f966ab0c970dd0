"""matplotlib's backend on a rank: draws without a screen; the rank sets `show` here."""

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas"]
