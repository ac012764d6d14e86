"""Where model, images and releases come from: one release line, one image a role, nothing made up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from glm53.deployment.facts import RELEASES
from glm53.deployment.findings import Finding
from glm53.deployment.model import Deployment
from vllm_blhnc.plan import RELEASES as TESTED_LINES

__all__ = ["PLACEHOLDER", "findings"]

#: What no command line, manifest or line of a script can carry: control characters, line ends, halves of surrogates.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

#: A folder as an #SBATCH line and a container's mount can name it.
_FOLDER = re.compile(r"/[\w.,@+~/-]*")

#: What stands for a value that somebody forgot to fill in.
PLACEHOLDER = re.compile(
    r"<[a-z][\w -]*>|\b(?:my|your)[-_](?:tag|image|registry|model|namespace|token|secret)\b"
    r"|\b(?:changeme|change-me|fixme|placeholder|replace[-_]me|xxx+)\b|\bto[-_]?do\b|\bexample\.(?:com|org)\b|\$\{",
    re.IGNORECASE,
)


def findings(deployment: Deployment) -> Iterator[Finding]:
    """What is wrong with `release`, `model`, `images` and the fabric, and placeholders anywhere."""
    yield from _release(deployment)
    yield from _model(deployment)
    yield from _images(deployment)
    yield from _fabric(deployment)
    yield from _shared(deployment)
    for field, text in _strings(deployment.model_dump(mode="json"), ""):
        if found := _UNPRINTABLE.search(text):
            yield Finding(
                "unprintable",
                field,
                f"{text!r} has {found[0]!r} in it, which no line of a script or manifest can carry.",
                "Write it as one line of printable characters.",
            )
        if found := PLACEHOLDER.search(text):
            yield Finding(
                "placeholder", field, f"{text!r}: {found[0]!r} stands for a value.", "Write the value itself."
            )


def _release(deployment: Deployment) -> Iterator[Finding]:
    release = RELEASES.get(deployment.release)
    if release is None:
        yield Finding(
            "unknown-release",
            "release",
            f"{deployment.release!r} is no release of Dynamo that this package knows, so that neither its images nor "
            "what they contain are known.",
            f"Use {', '.join(RELEASES)}.",
        )
    elif release.vllm_line not in TESTED_LINES:
        yield Finding(
            "untested-release",
            "release",
            f"{deployment.release} brings vLLM {release.vllm}, which the plugins refuse at start.",
            f"Use a release with vLLM {', '.join(TESTED_LINES)}.",
        )


def _fabric(deployment: Deployment) -> Iterator[Finding]:
    if "kubernetes" in deployment.targets and deployment.disaggregated and deployment.cluster.rdma is None:
        yield Finding(
            "no-fabric",
            "cluster.rdma",
            "pods get no network device, so that NIXL cannot reach the other node, or would by TCP.",
            "Name the cluster's resource for RDMA devices, such as rdma/ib.",
        )


def _shared(deployment: Deployment) -> Iterator[Finding]:
    shared = str(deployment.cluster.shared)
    if "slurm" in deployment.targets and not _FOLDER.fullmatch(shared):
        yield Finding(
            "shared-folder",
            "cluster.shared",
            f"{shared!r} is no folder that a line of #SBATCH and a container's mount can name.",
            "Give an absolute path of letters, digits and . , @ + ~ _ - only.",
        )


def _model(deployment: Deployment) -> Iterator[Finding]:
    model = deployment.model
    if (model.path is None) == (model.repository is None):
        yield Finding(
            "model-source",
            "model",
            "the weights come from a folder or from a repository: from exactly one of them.",
            "Give model.path or model.repository.",
        )
        return
    if model.revision and model.path is not None:
        yield Finding(
            "revision-of-folder", "model.revision", "a folder has no revision.", "Leave it out, or give a repository."
        )
    local = "local" in deployment.targets
    if local and model.path is None:
        yield Finding(
            "model-source",
            "model.repository",
            "the local stack serves a folder and fetches nothing.",
            "Give model.path.",
        )
    if not local and model.make is not None:
        yield Finding(
            "model-make",
            "model.make",
            "a generated model is for the local stack; its answers are noise.",
            "Leave make out.",
        )
    if not local and model.path is not None and (model.path.is_absolute() or ".." in model.path.parts):
        yield Finding(
            "model-outside-volume",
            "model.path",
            f"{model.path} is not inside the cluster's volume.",
            "Give the folder relative to the volume, such as checkpoints/glm-5.3-tuned.",
        )
    names = [adapter.name for adapter in model.adapters]
    if len({*names, model.served_name}) <= len(names):
        yield Finding(
            "adapter-name",
            "model.adapters",
            f"{', '.join(names)} and {model.served_name} are not all different.",
            "Give each adapter a name of its own.",
        )
    if model.adapters and deployment.targets != ("kubernetes",):
        yield Finding(
            "adapter-target",
            "model.adapters",
            "adapters are loaded by Dynamo's operator, which only Kubernetes has.",
            "Use targets: [kubernetes], or merge the adapter into a checkpoint and give its folder.",
        )


def _images(deployment: Deployment) -> Iterator[Finding]:
    images = deployment.images
    for role in ("frontend", "engine", "store"):
        name = getattr(images, role)
        if not re.fullmatch(r"[a-z0-9]+([._/-][a-z0-9]+)*", name):
            yield Finding(
                "image-name",
                f"images.{role}",
                f"{name!r} is no image name without tag and digest.",
                "Give the name only: the tag is the release, digests are in images.digests.",
            )
    if images.frontend == images.engine:
        yield Finding(
            "engine-image-on-frontend",
            "images.frontend",
            f"{images.frontend} is the engine's image: many gigabytes, and no node without a GPU needs them.",
            "Use dynamo-frontend.",
        )
    used = {images.frontend, images.engine, images.store}
    for name in sorted(set(images.digests) - used):
        yield Finding(
            "unused-digest",
            f"images.digests.{name}",
            "no role uses this image.",
            f"Name one of {', '.join(sorted(used))}, or remove it.",
        )
    if len(set(images.digests.values())) < len(images.digests):
        yield Finding(
            "same-digest",
            "images.digests",
            "two images have one digest, so that one of them is wrong.",
            "Look them up in the registry.",
        )


def _strings(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(item, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, f"{field}.{index}")
