"""The GPUs of notebook servers, and those that several tasks and servers share."""
