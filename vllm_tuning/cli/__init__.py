"""The command line. Exit 0; 2 on bad usage; 1 with one line on bad input."""

import errno
import os
import sys
from contextlib import suppress

import click

from ..units import InputError
from .budget import budget
from .check import check
from .launches import fit, read, recommend, report
from .measure import measure, plan
from .options import complain
from .simulate import simulate
from .throughput import throughput


class _Commands(click.Group):
    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except InputError as error:
            problem = str(error)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            if not error.filename:
                _drop_output()
            problem = f"{error.filename or 'output'}: {error.strerror or error}"
        except UnicodeError as error:
            problem = f"a name or a text is not UTF-8: {error}"
        except KeyboardInterrupt:
            problem = "interrupted"
        complain(problem)
        return ctx.exit(1)


def _drop_output():
    """What stdout could not take stays in its buffer, and fails again when Python ends."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-tuning", prog_name="vllm-tuning")
def main():
    """What to set vLLM's --max-num-seqs and --max-num-batched-tokens to.

    LAUNCHES is a launches.csv, a folder of one, the name of a data set the package carries, or
    vLLM server logs.
    """


for command in (read, fit, recommend, report, budget, plan, measure, simulate, throughput, check):
    main.add_command(command)
