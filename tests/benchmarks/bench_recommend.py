"""`vllm-tuning recommend` against `python -c "import numpy"`: whole processes."""

import sys

from timing import command, compare

if __name__ == "__main__":
    compare(
        "recommend",
        command(
            sys.executable,
            "-m",
            "vllm_tuning",
            "recommend",
            "llama-3-8b-2-layers",
            "--input-len",
            "1024",
            "--output-len",
            "256",
        ),
        command(sys.executable, "-c", "import numpy"),
        limit=3,
        turns=15,
    )
