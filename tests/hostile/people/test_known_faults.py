"""Packages with known vulnerabilities, from the public databases if they can be reached."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
LEFT_ALONE: dict[str, str] = {}
"""Vulnerabilities that do not affect us, each with the reason."""


def run(*command, folder=TREE):
    """Run an audit; return the JSON document that it prints."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    try:
        return json.loads(result.stdout)
    except ValueError:
        pytest.skip(f"nobody to ask: {(result.stderr or result.stdout).strip()[-300:]}")


def faults(report):
    """Return pip-audit's results, as (package, vulnerability)."""
    found = ((one["name"], fault["id"]) for one in report["dependencies"] for fault in one.get("vulns", ()))
    return [(name, fault) for name, fault in found if fault not in LEFT_ALONE]


def test_a_fault_is_seen_in_a_report():
    report = {"dependencies": [{"name": "a", "vulns": [{"id": "X-1"}]}, {"name": "b", "skip_reason": "gone"}]}
    assert faults(report) == [("a", "X-1")]


@pytest.mark.full("asks the network")
def test_no_python_package_has_a_known_fault():
    pytest.importorskip("pip_audit", reason="its package comes with ./test full")
    arguments = ["--requirement", "constraints.txt", "--disable-pip", "--require-hashes", "--format", "json"]
    report = run(sys.executable, "-m", "pip_audit", *arguments, "--progress-spinner", "off")
    if all("skip_reason" in one for one in report["dependencies"]):
        pytest.skip(f"nobody to ask: {report['dependencies'][0]['skip_reason']}")
    assert faults(report) == []


@pytest.mark.full("asks the network")
@pytest.mark.parametrize("folder", ["images/hub", "hub_ext/minicluster_hub/pages/npm"])
def test_no_npm_package_has_a_known_fault(folder):
    report = run("npm", "audit", "--json", "--omit=dev", folder=TREE / folder)
    if "metadata" not in report:
        pytest.skip(f"nobody to ask: {report.get('message')}")
    assert report["metadata"]["vulnerabilities"]["total"] == 0, json.dumps(report["vulnerabilities"])
