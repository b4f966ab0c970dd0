"""Who runs next and where: pure functions over a snapshot, without I/O or clock."""
