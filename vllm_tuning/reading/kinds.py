"""What a file is that was given in the place of another, and where it belongs."""

import re

from ..units import InputError

_KINDS = (  # what begins so, or holds that, and what to do with it
    (
        r'\s*\{(?=.*"(?:model_type|architectures)"\s*:)',
        "a model's config.json: give it by --config",
    ),
    (
        r'\s*[\[{](?=.*"(?:request_throughput|output_throughput|benchmarks|num_prompts)"\s*:)',
        "a benchmark's result: give it by --load-runs",
    ),
    (r"(?:#|vllm:)(?=.*^vllm:\w+[{ ])", "a scrape of /metrics: give it to check"),
    (
        r"(?:#[^\n]*\n|\s)*(?=[\w,]*max_num_batched_tokens\b)[\w,]+\s*$",
        "a launches.csv: give it to fit, recommend or report",
    ),
    (
        r"(?:#[^\n]*\n|\s|version:[^\n]*\n|name:[^\n]*\n)*services:\s*$",
        "a docker-compose file: give what its container prints (docker compose logs)",
    ),
    (
        r"(?=.*(?:Initializing an? (?:V[01] )?LLM engine|GPU KV cache size:|KV cache memory: ))",
        "a server's log: give it to read, fit or recommend",
    ),
)


def not_expected(where, text: str, reason: str, expected: str, own: str = "\0") -> InputError:
    """The complaint about a file: what it is and where to give it, else the reason.

    own: a word of the kind that is expected, so that a broken one is not told to be one.
    """
    for pattern, kind in _KINDS:
        if own not in kind and re.match(pattern, text[: 1 << 16], re.DOTALL | re.MULTILINE):
            reason = f"this is {kind}"
            break
    return InputError(f"{where}: {reason}; expected {expected}")
