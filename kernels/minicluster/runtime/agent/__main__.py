"""`python -m minicluster.runtime.agent`: the first process of a task."""

import sys

from minicluster.runtime.agent.agent import main

if __name__ == "__main__":
    sys.exit(main())
