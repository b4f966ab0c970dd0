"""Why a command fails. Each message says in a sentence or two what to do."""


class ClusterError(Exception):
    """Base of this package's errors. The administrator sees the text and no traceback."""


class EngineUnusable(ClusterError):
    """The Docker Engine does not answer, or is too old."""


class SwarmUnusable(ClusterError):
    """With this machine's Swarm, no cluster can be made or changed from here."""


class ImageUnusable(ClusterError):
    """An image is missing, or cannot be pulled or pushed."""


class ServiceStuck(ClusterError):
    """A service of the platform does not start."""


class ClusterMissing(ClusterError):
    """There is no cluster here."""


class OptionUnusable(ClusterError):
    """The value of an option cannot be used."""
