"""Divides a model among ranks: mc.prepare's `strategy`, mc.plan, mc.explain, mc.gather, mc.clip_grad_norm_."""
