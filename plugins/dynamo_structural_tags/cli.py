"""The command line ``dynamo-structural-tags``."""

from __future__ import annotations

import argparse
import json
import os
import sys

from dynamo_structural_tags import check, doctor, probe, processes

__all__ = ["main"]

_DOCTOR = """\
Looks at this installation (versions, entry point) and at the serving processes of this user on this machine: Dynamo
frontends and workers, and vllm serve, by their command lines and environments. Without any, it looks at the
environment that it runs in. With --url it also asks a live endpoint for one forced call, and reads its counters.

Each finding has a code (the table is in docs/structural_tags.md), what was seen, what is needed, and the fix.

Exit status: 0 nothing to do, 1 a warning or an error, 2 the endpoint at --url could not be asked.

  dynamo-structural-tags doctor
  dynamo-structural-tags doctor --url http://127.0.0.1:8000
  DYNAMO_STRUCTURAL_TAGS=enforce dynamo-structural-tags doctor --json | jq '.findings[] | select(.level != "ok")'
"""


def _doctor(arguments: argparse.Namespace) -> int:
    found = doctor.diagnose([] if arguments.no_processes else processes.find())
    if arguments.url is not None:
        found += probe.probe(arguments.url, timeout=arguments.timeout)
    code = doctor.status(found)
    if arguments.json:
        print(json.dumps({"status": code, "findings": [finding.as_dict() for finding in found]}, indent=2))
    else:
        print("\n".join(map(str, found)))
    return code


def main(argv: list[str] | None = None) -> int:
    """Entry point of `dynamo-structural-tags`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="dynamo-structural-tags", description="Tool calls that cannot come out wrong."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check.add_command(commands)
    look = commands.add_parser(
        "doctor",
        help="find what keeps tool calls from coming out right in a deployment",
        description=_DOCTOR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    look.add_argument("--url", help="address of a live OpenAI endpoint, without /v1, for a real request")
    look.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="for each request to --url")
    look.add_argument("--no-processes", action="store_true", help="look at this environment only, not at processes")
    look.add_argument("--json", action="store_true", help="print the findings as JSON")
    look.set_defaults(run=_doctor)
    arguments = parser.parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has seen enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
