"""The job service with an engine that says it has images; its tasks are processes of this machine.

So a notebook, the job that pip works in, and the registry are real; only Docker is not needed.
"""

from traitlets import List, Unicode

from minicluster_hub import app
from minicluster_hub.engines.local.engine import LocalEngine


class EngineWithImages(LocalEngine):
    images = List(Unicode(), help="References of the images.").tag(config=True)

    def own_images(self):
        return tuple(self.images)


if __name__ == "__main__":
    app.ENGINES["images"] = f"{__name__}:EngineWithImages"
    app.main()
