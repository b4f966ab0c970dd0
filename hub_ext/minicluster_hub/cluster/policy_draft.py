"""The container of a lab's own policies as a service of the platform: pure."""

from __future__ import annotations

from minicluster_hub.cluster import policy_container
from minicluster_hub.cluster.choices import Choices
from minicluster_hub.cluster.drafts import Draft, Facts


def policy(choices: Choices, facts: Facts) -> Draft:
    """What runs the lab's own policies, beside each job service: it has nothing but their files."""
    return Draft(
        role=policy_container.ROLE,
        image=facts.images.hub,
        args=("run", "policy"),
        configs=policy_container.files(choices.policies),
        user=policy_container.USER,
        sealed_off=True,
        policy_socket=True,
        limits=policy_container.LIMITS,
        each_manager=bool(facts.shared_data),
    )
