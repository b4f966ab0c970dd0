"""What keeps a cluster from starting, each told in one sentence."""


class LaunchError(Exception):
    """Base of this room's errors: the text is all that a user sees."""


class DataFolderUnusable(LaunchError):
    """The data folder cannot be made, written, or is held by another cluster."""


class DatabaseBroken(LaunchError):
    """A database in the data folder cannot be read."""


class PortTaken(LaunchError):
    """Another program listens where browsers should come in."""


class HubEnded(LaunchError):
    """The hub ended by itself."""


class DemoFailed(LaunchError):
    """The main job did not do what it should."""


class VisitFailed(LaunchError):
    """A door that a user goes through did not open."""


class Stopped(Exception):
    """A signal asked for the end; not an error."""
