"""How the lines of the magics are read: words, values, help, and what Tab offers."""
