"""matplotlib's backend on a rank: draws without a screen; `show` is put here by the rank."""

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas"]
