"""The script that looks up what a recipe leaves open, and prints it as a file of pins."""

from __future__ import annotations

import shlex

from glm53.deployment import Deployment

__all__ = ["pins_script"]


def pins_script(deployment: Deployment) -> str:
    """``pins.sh > pins.yaml``: digests from the registry, the model's commit from the hub. Needs docker and curl."""
    images = deployment.images
    names = sorted({images.frontend, images.engine, images.store})
    lines = [
        "#!/usr/bin/env bash",
        f"# Prints the pins of {deployment.name} as YAML, for glm53 render --pins",
        "set -euo pipefail",
        "",
        "digest() { docker buildx imagetools inspect \"$1\" --format '{{.Manifest.Digest}}'; }",
        "",
        "echo images:",
        "echo '  digests:'",
    ]
    for name in names:
        reference = f"{images.registry}/{name}:{deployment.release}"
        lines += [f"found=$(digest {shlex.quote(reference)})", f'echo "    {name}: $found"']
    if deployment.model.repository is not None:
        address = f'"${{HF_ENDPOINT:-https://huggingface.co}}/api/models/{deployment.model.repository}"'
        read = "python3 -c 'import json, sys; print(json.load(sys.stdin)[\"sha\"])'"
        lines += [
            f"found=$(curl --fail --silent --show-error {address} | {read})",
            "echo model:",
            'echo "  revision: $found"',
        ]
    return "\n".join(lines) + "\n"
