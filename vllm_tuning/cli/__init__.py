"""The command line. Exit 0; 2 on bad usage; 1 with one line on bad input."""

import errno

import click

from ..units import InputError
from .budget import budget
from .check import check
from .launches import fit, read, recommend, report
from .measure import measure, plan
from .options import complain
from .simulate import simulate


class _Commands(click.Group):
    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except InputError as error:
            problem = str(error)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            problem = f"{error.filename or 'output'}: {error.strerror or error}"
        except UnicodeError as error:
            problem = f"a name or a text is not UTF-8: {error}"
        except KeyboardInterrupt:
            problem = "interrupted"
        complain(problem)
        return ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-tuning", prog_name="vllm-tuning")
def main():
    """What to set vLLM's --max-num-seqs and --max-num-batched-tokens to.

    LAUNCHES is a launches.csv, a folder of one, the name of a data set the package carries, or
    vLLM server logs.
    """


for command in (read, fit, recommend, report, budget, plan, measure, simulate, check):
    main.add_command(command)
