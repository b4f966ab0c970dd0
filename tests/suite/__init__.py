"""The program of `./test` after its set-up: runs the parts, and prints their times."""
