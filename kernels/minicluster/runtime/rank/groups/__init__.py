"""The process group of a rank: the default one, and models that move to another."""
