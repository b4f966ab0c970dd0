"""Why a cluster does not start. Each message is one sentence for the user."""


class LaunchError(Exception):
    """Base of this room's errors. The user sees the text and no traceback."""


class DataFolderUnusable(LaunchError):
    """The data folder cannot be created or written, or another cluster uses it."""


class DatabaseBroken(LaunchError):
    """A database in the data folder cannot be read."""


class PortTaken(LaunchError):
    """The port for browsers is in use or cannot be opened."""


class HubEnded(LaunchError):
    """The hub ended by itself."""


class DemoFailed(LaunchError):
    """A step of the demo failed or gave a wrong result."""


class VisitFailed(LaunchError):
    """The hub, the notebook server or the job service did not answer a user as it should."""


class Stopped(Exception):
    """A signal asked this program to end; not an error."""
