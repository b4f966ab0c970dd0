"""`python -m minicluster_hub.simulator.command`: the command without a cluster."""

import sys

from minicluster_hub.simulator.command.command import run

sys.exit(run(sys.argv[1:]))
