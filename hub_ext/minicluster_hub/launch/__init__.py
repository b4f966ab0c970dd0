"""The body of `./run`: starts the hub on this machine, prints how to log in, and ends all that it started."""
