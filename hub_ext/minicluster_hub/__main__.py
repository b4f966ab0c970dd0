"""`python -m minicluster_hub`: the job service."""

from minicluster_hub.app import main

main()
