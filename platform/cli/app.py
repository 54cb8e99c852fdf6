"""The root command, its exit codes, and how errors are shown."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from elastrec.platform.cli import EXIT_INTERRUPTED
from elastrec.platform.cli.reader import ReaderGone, reader_awaited
from elastrec.platform.specs.errors import DataError, ElastrecError, OtherJobError, ScalingError, SpecError
from elastrec.platform.specs.text.uris import mask_event

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_READER_GONE = 141
"""Of a program that SIGPIPE ends: the reader of its output has ended, as in `elastrec schema | head -1`."""
_COMMANDS = {
    "validate": ("job", "Check a job file, and show all problems."),
    "render": ("job", "Print exactly the pods that `run` would create (dry run), with masked secrets."),
    "run": ("run", "Train, evaluate, gate and register the model of a job file."),
    "resume": ("resume", "Continue a JOB that failed or was stopped, from its newest undamaged record."),
    "status": ("status", "Show the jobs of the cluster, or the pods of one JOB."),
    "logs": ("cluster", "Print the log of a POD."),
    "stop": ("cluster", "Stop a JOB and remove its pods."),
    "explain": ("past", "Show what happened to a JOB, why, and where its time went."),
    "report": ("past", "Print the report of a JOB."),
    "ledger": ("past", "Show every attempt at every shard of a JOB."),
    "inspect": ("inspect_record", "Show the contents of a checkpoint record."),
    "plan": ("plan", "Show how scaling would change running JOBs."),
    "scale": ("scale", "Change the number or the size of a running JOB's pods, or move pods."),
    "order": ("order", "Override the job file for workers of a running JOB."),
    "simulate": ("simulate", "Compare scaling policies on the jobs of FILE in a simulated cluster."),
    "agent": ("cluster", "The local cluster: one node agent that runs pods on this machine."),
    "schema": ("job", "Print the JSON schema of a job file, or its Kubernetes CRD."),
    "data": ("data", "Generate, convert, inspect, cluster, publish and land click logs."),
}
"""By the name of a command: its module, and the first sentence of its help, so that their list imports none of them."""
_PRIVATE = frozenset({"validate", "render", "run", "resume", "stop", "plan", "scale", "order", "agent"})
"""Commands that write only the platform's own files, which only their owner may read."""


class _Root(click.Group):
    """Imports the module of a command only when it is used, so that `--help` and completion are fast."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Prints help, too."""
        with reader_awaited():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        with reader_awaited():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands of the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands that begin with the text, or options of this one."""
        options = click.Command.shell_complete(self, ctx, incomplete)
        begun = [
            CompletionItem(name, help=text) for name, (_, text) in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*begun, *options]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = __import__(f"elastrec.platform.cli.commands.{_COMMANDS[name][0]}", fromlist=[name])
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        import difflib

        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.command(cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="elastrec")
@click.option("--verbose", "-v", is_flag=True, help="Show every decision as a log line on standard error.")
def root(verbose: bool) -> None:
    """Train deep recommendation models on shared, unreliable clusters.

    \b
    A first job, start to end:
      elastrec data generate clicks --rows-per-day 200000    a click log with a known best AUC
      elastrec validate clicks/job.yaml                      check the job file
      elastrec render clicks/job.yaml                        see the pods it would create
      elastrec run clicks/job.yaml                           train, evaluate, register
      elastrec status --watch                                in another terminal

    \b
    Where things are:
      ELASTREC_HOME         the platform's own folder (default ~/.elastrec)
      ELASTREC_CLUSTER      JSON file of a cluster other than the local one
      ELASTREC_WORK_URI     manifests, logs, relative checkpoint stores (default: a folder in ELASTREC_HOME)
      MLFLOW_TRACKING_URI   tracking server (default: an SQLite file in ELASTREC_HOME)
      ELASTREC_TLS          folder with ca.pem, tls.crt, tls.key for the node agent (default: no TLS)

    \b
    Shell completion (bash; zsh and fish likewise):
      eval "$(_ELASTREC_COMPLETE=bash_source elastrec)"

    Exit codes: 0 done, 1 the job or the command failed, 2 bad input; the reason is on standard error. A JOB that the
    cluster does not have is bad input; if its node agent does not run, the commands on running jobs fail.
    """
    configure_logs(verbose)
    context = click.get_current_context()
    if context.invoked_subcommand in _PRIVATE:
        # Other users may have access to the home, and MLflow creates files there with the permissions of the umask.
        before = os.umask(0o077)
        context.call_on_close(lambda: os.umask(before))


def configure_logs(verbose: bool) -> None:
    """Structured lines to standard error; without `verbose` only warnings and errors."""
    # Imported here, because the help and shell completion do not need it.
    import structlog

    level = logging.INFO if verbose else logging.WARNING
    others = [processor for processor in structlog.get_config()["processors"] if processor is not mask_event]
    structlog.configure(
        processors=[mask_event, *others],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if not verbose:
        # MLflow configures its own loggers when it is imported.
        os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")


def main(arguments: list[str] | None = None) -> None:
    """Entry point; turns errors into one message on standard error and an exit code."""
    _replace_closed_streams()
    try:
        code = _exit_code(arguments)
    except (ReaderGone, BrokenPipeError):
        code = EXIT_READER_GONE
        _discard_output()
    sys.exit(code)


def _exit_code(arguments: list[str] | None) -> int:
    try:
        code = root.main(args=arguments, prog_name="elastrec", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return EXIT_BAD_INPUT
    except (click.Abort, KeyboardInterrupt) as error:
        # click replaces the interrupting exception with Abort.
        interrupt = error.__cause__ or error
        click.echo("; ".join(["interrupted", *getattr(interrupt, "__notes__", [])]), err=True)
        return int(getattr(interrupt, "exit_code", EXIT_INTERRUPTED))
    except (SpecError, DataError, OtherJobError, ScalingError) as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_BAD_INPUT
    except (ElastrecError, OSError) as error:
        # An OSError is of a file that the user has named, or of standard output: a full disk, a missing folder.
        click.echo(f"Error: {error}", err=True)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def _replace_closed_streams() -> None:
    """Discards what is written to a stream that the caller has closed (`elastrec stop JOB >&-`), which is None in
    Python. The next opened file would otherwise get the number of the stream, and with it the output of children."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _discard_output() -> None:
    """Python writes what is left in its buffers when it ends, and reports an error if nobody reads that."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
