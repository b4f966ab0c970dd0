"""The agent of a task: follows the service's orders and reports what happens."""
