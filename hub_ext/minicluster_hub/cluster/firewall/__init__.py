"""What users' containers may reach of the machines' network."""
