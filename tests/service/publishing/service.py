"""The job service with an engine that claims to have images; its tasks are processes of this machine.

So the notebook, the job that runs pip, and the registry are real, but Docker is not needed.
"""

from traitlets import List, Unicode

from minicluster_hub import app
from minicluster_hub.engines.base import ImageUnknown
from minicluster_hub.engines.capabilities import TaskImages
from minicluster_hub.engines.local.engine import LocalEngine


class EngineWithImages(LocalEngine):
    images = List(Unicode(), help="References of the images.").tag(config=True)

    def __init__(self, **options):
        super().__init__(**options)
        self.task_images = OwnImages(tuple(self.images))


class OwnImages(TaskImages):
    """Some image references; no node has the images."""

    def __init__(self, references):
        self.references = references

    def own(self):
        return self.references

    def on_nodes(self):
        return {}

    async def digest(self, reference):
        raise ImageUnknown(f"there is no Docker to look up {reference}")


if __name__ == "__main__":
    app.main()
