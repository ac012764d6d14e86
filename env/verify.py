"""Check a finished environment from inside: run by its own Python, writes what it found as JSON.

Every pin of the lock file is what is installed, with all its files; every requirement of every distribution
is met, but for those that `lines.toml` accepts; what the line is for imports; vLLM's CPU kernels load.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from lines import Accepted, Line, load, normalised


def pin_problems(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Compare both name -> version mappings; one sentence for every pin that is not what is installed."""
    return [
        f"{name}=={version} is pinned, and {installed.get(name, 'none')} is installed"
        for name, version in pins.items()
        if installed.get(name) != version
    ]


def file_problems(distributions: Iterable[metadata.Distribution]) -> list[str]:
    """Return one sentence for each distribution that lacks files it came with; compiled bytecode may go."""
    problems = []
    for distribution in distributions:
        files = [file for file in distribution.files or () if file.suffix != ".pyc"]
        gone = [file for file in files if not os.path.exists(file.locate())]
        if gone:
            problems.append(f"{distribution.name} {distribution.version} lacks {len(gone)} files, as {gone[0]}")
    return problems


def unmet(installed: Mapping[str, str], requirements: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], str]:
    """Return (distribution, what it requires) -> sentence for every requirement that is not met.

    `requirements` holds the Requires-Dist texts of each distribution; those of extras do not count.
    """
    from packaging.requirements import Requirement

    found: dict[tuple[str, str], str] = {}
    for name, texts in requirements.items():
        for text in texts:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            wanted = normalised(requirement.name)
            version = installed.get(wanted)
            if version is None:
                found[name, wanted] = f"{name} requires {text}, which is not installed"
            elif not requirement.specifier.contains(version, prereleases=True):
                found[name, wanted] = f"{name} requires {text}, and {version} is installed"
    return found


def consistency_problems(found: Mapping[tuple[str, str], str], accepted: Iterable[Accepted]) -> list[str]:
    """Return the unmet requirements that nobody accepted, and the accepted ones that are met by now."""
    allowed = {(normalised(entry.distribution), normalised(entry.requires)) for entry in accepted}
    problems = [sentence for key, sentence in found.items() if key not in allowed]
    stale = sorted(allowed - set(found))
    return problems + [
        f"lines.toml accepts that {distribution} lacks {requires}, but it does not lack it: delete the entry"
        for distribution, requires in stale
    ]


def import_problems(names: Iterable[str]) -> list[str]:
    """Import each module; one sentence for each that fails."""
    problems = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            problems.append(f"import {name} failed: {type(error).__name__}: {error}")
    return problems


def kernel_problems() -> list[str]:
    """Load vLLM's CPU kernels as its CPU platform does, and look for an operator that every build has."""
    import torch
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.import_kernels()
    if hasattr(torch.ops._C, "rms_norm"):
        return []
    return ["vLLM's CPU kernels did not load: torch.ops._C.rms_norm does not exist"]


def examine(line: Line) -> list[str]:
    """Run all checks of this environment; return one sentence for each problem."""
    distributions = list(metadata.distributions())
    installed = {normalised(each.name): each.version for each in distributions}
    requirements = {normalised(each.name): each.requires or () for each in distributions}
    problems = pin_problems(line.pins(), installed) + file_problems(distributions)
    problems += consistency_problems(unmet(installed, requirements), line.accepted)
    return problems or import_problems(line.imports) or kernel_problems()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--line", required=True)
    parser.add_argument("--report", type=Path, required=True, help="where to write the JSON")
    args = parser.parse_args()
    line = load(args.line)
    problems = examine(line)
    told = (
        "vllm",
        "torch",
        "ai-dynamo",
        "nixl",
        "xgrammar",
        "transformers",
        "mooncake-transfer-engine-non-cuda",
    )
    versions = {name: version for name, version in line.pins().items() if name in told}
    args.report.write_text(json.dumps({"problems": problems, "versions": versions}))
    print("\n".join(problems) or "no problem found")
    return 1 if problems else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # NIXL's libraries are known to crash an interpreter that ends in the usual way.
    os._exit(code)
