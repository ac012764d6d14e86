"""The volume that all nodes share: where models and plugins lie in it, and the script that puts them there, once."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from glm53 import __version__
from glm53.deployment import Deployment

__all__ = ["model_folder", "plugins_folder", "prepare_script"]

#: Folder of the volume with wheels that are taken before an index is asked.
_WHEELS = "wheels"


def model_folder(deployment: Deployment, root: str) -> str:
    """The checkpoint's folder under the volume's mount point; a repository's is named by its revision."""
    model = deployment.model
    if model.path is not None:
        return str(PurePosixPath(root) / model.path)
    name = str(model.repository).replace("/", "--")
    return f"{root}/hub/{name}/{model.revision or 'unpinned'}"


def plugins_folder(deployment: Deployment, root: str) -> str:
    """The folder with this package and Mooncake, named by both versions, so that an update is another folder."""
    return f"{root}/plugins/glm53-blackwell-{__version__}-mooncake-{deployment.versions.mooncake}"


def prepare_script(deployment: Deployment, root: str) -> str:
    """Shell that fetches the model and installs the plugins, each completely or not at all; harmless when repeated.

    The images stay those of the release: plugins are added on PYTHONPATH and change none of their versions.
    """
    plugins, model = plugins_folder(deployment, root), model_folder(deployment, root)
    wheels = f"{root}/{_WHEELS}/{__version__}"  # of a release that no index has, or that the cluster cannot fetch
    packages = [f"glm53-blackwell=={__version__}"]
    if deployment.tier:
        packages.append(f"mooncake-transfer-engine-cuda13=={deployment.versions.mooncake}")
    install = shlex.join(
        ["python3", "-m", "pip", "install", "--no-deps", "--no-compile", "--find-links", wheels, "--target"]
    )
    lines = [
        "set -euo pipefail",
        f"plugins={shlex.quote(plugins)}",
        'if [ ! -e "$plugins/.complete" ]; then',
        '    rm -rf "$plugins" "$plugins.part"',
        f'    {install} "$plugins.part" {shlex.join(packages)}',
        # Workers have the volume read-only, where Mooncake's own starter could not make them executable.
        *(['    chmod +x "$plugins.part"/mooncake/mooncake_{master,client}'] if deployment.tier else []),
        '    touch "$plugins.part/.complete"',
        '    mv "$plugins.part" "$plugins"',
        "fi",
        f"model={shlex.quote(model)}",
    ]
    if deployment.model.repository is None:
        lines += [
            'if [ ! -e "$model/config.json" ]; then',
            '    echo "there is no checkpoint in $model: copy it there first" >&2',
            "    exit 1",
            "fi",
        ]
    else:
        revision = ["--revision", deployment.model.revision] if deployment.model.revision else []
        fetch = shlex.join(["hf", "download", deployment.model.repository, *revision, "--local-dir"])
        lines += [
            'if [ ! -e "$model/.complete" ]; then',
            f'    HF_HUB_OFFLINE=0 {fetch} "$model"',
            '    touch "$model/.complete"',
            "fi",
        ]
    return "\n".join(lines) + "\n"
