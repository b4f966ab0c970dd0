"""`python -m minicluster_hub.simulate`: the command without a cluster."""

import sys

from minicluster_hub.simulate.command import run

sys.exit(run(sys.argv[1:]))
