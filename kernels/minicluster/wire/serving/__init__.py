"""Messages about served models: the models of an owner, their versions, and the replicas that answer."""
