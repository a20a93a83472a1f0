"""Memory of one GPU as vLLM prints it: less than the name says, not the same each time."""

# GiB, and the log that printed it
TOTAL_MEMORY = {
    "A100-40GB": 39.49,  # vLLM 0.9.2, 35.54 GiB requested at 0.9; another card printed 39.50
    "A100-80GB": 79.15,  # vLLM 0.8.2, SXM4
    "A30": 23.5,         # vLLM 0.11
    "B300": 276.62,      # vLLM 0.27
    "GB10": 121.63,      # unified with the host's
    "H100": 79.19,       # vLLM 0.19, 80GB HBM3, the launches of tests/data/kv-cache; also 79.18
    "H100-NVL": 93.09,   # vLLM 0.10, the launches of tests/data/kv-cache
    "H200": 139.8,       # vLLM 0.28
    "L40S": 44.31,       # vLLM 0.7
    "MI300X": 191.98,    # data/llama-3.1-70b-mi300x
    "RTX-3090": 23.58,   # data/llama-3.1-8b-rtx3090; also 23.53 to 23.56
    "T4": 14.56,         # vLLM 0.7
    "V100-32GB": 31.74,  # vLLM 0.8.5
}
KNOWN = ", ".join(TOTAL_MEMORY)
SMALL_DEFAULTS = ("A100", "GB10")  # vLLM takes 256 / 2048 there, whatever the size


def named(name: str) -> str | None:
    """The name in TOTAL_MEMORY, None where there is none: case, spaces, NVIDIA and 80GB aside.

    >>> named("Nvidia H100 NVL"), named("h100 80GB"), named("a100")
    ('H100-NVL', 'H100', None)
    """
    words = name.upper().replace("-", " ").replace("_", " ").split()
    plain = "-".join(word for word in words if word not in ("NVIDIA", "AMD", "GEFORCE", "TESLA"))
    return next((known for known in (plain, plain.removesuffix("-80GB"))
                 if known in TOTAL_MEMORY), None)
