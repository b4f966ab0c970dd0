"""What keeps a command from doing its work, each told in a sentence or two with what to do."""


class ClusterError(Exception):
    """Base of this room's errors: the text is all that an administrator sees."""


class EngineUnusable(ClusterError):
    """The Docker Engine does not answer, or is too old."""


class SwarmUnusable(ClusterError):
    """This machine's Swarm is not one that a cluster can be made in from here."""


class ImageUnusable(ClusterError):
    """An image is not there, or cannot be brought where it is needed."""


class ServiceStuck(ClusterError):
    """A service of the platform does not come up."""


class ClusterMissing(ClusterError):
    """There is no cluster here that a command could work on."""


class OptionUnusable(ClusterError):
    """What an option names cannot be used."""
