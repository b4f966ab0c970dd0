"""The body of `./run`: starts the hub on this machine, tells the user, and ends all of it again."""
