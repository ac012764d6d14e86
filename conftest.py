"""What holds for all tests. In `tests/` this would put folders named as the packages before the packages."""

from __future__ import annotations

import pytest

from glm53.local import processes


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several workers of pytest-xdist ports of its own.

    A port that one test has picked and whose server still loads would look free to a test of another worker.
    """
    if worker := getattr(config, "workerinput", None):
        number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        all_ports = processes._PORTS
        processes._PORTS = all_ports[len(all_ports) * number // count : len(all_ports) * (number + 1) // count]
