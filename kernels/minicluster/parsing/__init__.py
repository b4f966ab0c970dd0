"""The parser of the magics' lines: words, values, help, and completion with Tab."""
