"""`python -m minicluster_spawner.server`: a user's notebook server, imported faster."""

from __future__ import annotations

from minicluster_hub.quick_import import without_grammar

if __name__ == "__main__":
    without_grammar()
    from jupyterhub.singleuser import main

    main()
