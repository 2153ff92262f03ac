"""The environment variables that point clients at an emulator."""

from __future__ import annotations


def client_environment(url: str, *, project: str = "emulated", zone: str = "us-central2-b") -> dict[str, str]:
    """What `gcloud` and tpux need to take the emulator for the cloud.

    Args:
        url: of the emulator.
        project: the project to work in; any name will do.
        zone: the default zone.
    """
    return {
        "TPUX_GCP_ENDPOINT": url,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{url}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{url}/compute/v1/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_PROJECT": project,
        "CLOUDSDK_COMPUTE_ZONE": zone,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
    }
