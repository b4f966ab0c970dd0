"""What keeps a command from doing its work; each message says in a sentence or two what to do."""


class ClusterError(Exception):
    """Base of this room's errors: the text is all that an administrator sees."""


class EngineUnusable(ClusterError):
    """The Docker Engine does not answer, or is too old."""


class SwarmUnusable(ClusterError):
    """No cluster can be made or changed from here in this machine's Swarm."""


class ImageUnusable(ClusterError):
    """An image is missing, or cannot be brought where it is needed."""


class ServiceStuck(ClusterError):
    """A service of the platform does not come up."""


class ClusterMissing(ClusterError):
    """There is no cluster here."""


class OptionUnusable(ClusterError):
    """What an option names cannot be used."""
