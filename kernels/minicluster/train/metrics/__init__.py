"""What a rank tells of its training: numbers, pictures, step times, profiles."""
