"""What `./test` does once all is set up: runs the parts, and says what took how long."""
