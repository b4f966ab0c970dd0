"""What a rank does for the framework that trains in its cell: how ranks find each other, and how they end."""
