"""Checks that the platform's services answer to every node. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import EVERYWHERE, Finding, failed, ok, warning
from minicluster_hub.cluster.doctor.messages import TargetAnswer
from minicluster_hub.engines.swarm.names import CLUSTER

LOOPBACK = "127.0.0.1"


def check_answers(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that the registry, the job service and the hub answer to every node."""
    silent = {node.address for node in facts.nodes if node.id in facts.silent}
    stopped = {service.role for service in facts.services if service.running < service.wanted}
    for node, report in facts.reporting:
        for answer in report.answers:
            target = answer.target
            if target.host in silent or target.what in stopped:
                continue  # Another check reports that node or service.
            if answer.ok:
                yield ok("reach", node.name, f"{target.group or target.what} answers")
            else:
                words = f"{target.what} ({target.target}) does not answer: {answer.words}"
                yield failed("reach", node.name, words, _remedy(answer))


def _remedy(answer: TargetAnswer) -> str:
    target, words = answer.target, answer.words.lower()
    if target.host == LOOPBACK and words.startswith("503"):
        return f"See docker service logs {CLUSTER}_{target.what}; check that this node reaches that address."
    if target.host == LOOPBACK:
        return f"The relay does not run there: see docker service ps {CLUSTER}_relay."
    if "refused" in words or words[:1] == "5":
        return f"The service at port {target.port} does not run: see docker service ls on a manager."
    return f"Open port {target.port}/tcp of {target.host} to this node in its firewall."


def check_set_aside(facts: ClusterFacts) -> Iterator[Finding]:
    """Warn of steps that the job service gave up after repeated failures: a person must look."""
    answers = [answer for _, report in facts.reporting for answer in report.answers]
    if count := max((answer.set_aside for answer in answers), default=0):
        steps = f"{count} step{'s' if count > 1 else ''}"
        words = f"the job service has given up {steps} that failed repeatedly"
        remedy = f"See docker service logs {CLUSTER}_service; a restart of that service tries them again."
        yield warning("set-aside", EVERYWHERE, words, remedy)


CHECKS = (check_answers, check_set_aside)
