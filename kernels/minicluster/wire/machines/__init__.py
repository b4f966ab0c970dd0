"""What machines and ranks use: readings of agents, and what the service tells of them."""
