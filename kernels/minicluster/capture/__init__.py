"""What travels with a cell: the names it reads, modules and files beside the notebook."""
