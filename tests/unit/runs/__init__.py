"""The room `runs` without a store."""
