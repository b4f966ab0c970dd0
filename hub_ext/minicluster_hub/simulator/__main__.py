"""`python -m minicluster_hub.simulator`: the command `simulate` without a cluster."""

import sys

from minicluster_hub.simulator.command import run

sys.exit(run(sys.argv[1:]))
