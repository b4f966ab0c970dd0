"""What is sent with a cell: the names that it reads, modules and files beside the notebook."""
