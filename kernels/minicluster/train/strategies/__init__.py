"""Models that are divided among ranks: strategies of mc.prepare, mc.plan, mc.explain, mc.gather."""
