"""The container of a lab's own policies as a service of the platform: pure."""

from __future__ import annotations

from minicluster_hub.cluster.policy_sandbox import container
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.drafts import Draft, Facts


def policy(choices: Choices, facts: Facts) -> Draft:
    """What runs the lab's own policies, beside each job service: it has nothing but their files."""
    return Draft(
        role=container.ROLE,
        image=facts.images.hub,
        args=("run", "policy"),
        configs=container.files(choices.policies),
        user=container.USER,
        sealed_off=True,
        policy_socket=True,
        limits=container.LIMITS,
        each_manager=bool(facts.shared_data),
    )
