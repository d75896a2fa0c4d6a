"""Commands and their options; each command calls the module with its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from blockwright import __version__
from blockwright.cli.session import command_session

app = typer.Typer(
    name="blockwright",
    help="Compile models to native code, run them, and look inside.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MODEL_HELP = (
    "A torch.export file (.pt2; loading it needs torch), package.module:name of an exported "
    "program or IR module (or a function returning one), or a .py script that defines an "
    "@I.ir_module (script.py:name if it defines several)."
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
TargetName = Annotated[
    str, typer.Option("--target", help="Machine to compile for: native, x86-64-v3, …")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"blockwright {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Compile models to native code, run them, and look inside."""


@app.command("compile")
def compile_command(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.bwx", help="Artefact to write.")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="Machine to compile for: native (default), x86-64-v3, …; repeatable: the artefact "
            "then holds the code of all, and the best is chosen where it is loaded.",
        ),
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show progress; default: on a terminal."),
    ] = None,
    dump_dir: Annotated[
        Path | None,
        typer.Option("--dump-dir", metavar="DIR", help="Write the program after every pass here."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Prove that every schedule is correct and show the verdicts; a "
            "refuted schedule is an error.",
        ),
    ] = False,
    prove: Annotated[
        bool,
        typer.Option("--prove", help="Like --verify, but an unproved schedule is an error too."),
    ] = False,
    fallback: Annotated[
        str,
        typer.Option(
            "--fallback",
            metavar="framework|error",
            help="Operators that are not covered run in the model's framework and are listed, or "
            "are an error.",
        ),
    ] = "framework",
    debug: Debug = False,
) -> None:
    """Compile a model once for all shapes it declares, and save the artefact."""
    with command_session(debug):
        from blockwright.cli.compile import compile_model

        targets = target or ["native"]
        proofs = "prove" if prove else verify
        compile_model(model, output, targets, progress, dump_dir, proofs, fallback)


@app.command("run")
def run_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL.bwx", help="A compiled model.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=FILE.npy", help="Read an argument from a file; repeatable."
        ),
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(
            "--random",
            metavar="NAME=SHAPE[:DTYPE]",
            help="Fill an argument with random numbers, such as ids=2x16:int64; repeatable. "
            "Floats are standard normal, integers 0 or 1.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random arguments.", min=0)] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Save results here as .npy files."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a compiled model on arrays from files or on random arrays."""
    with command_session(debug):
        from blockwright.cli.run import run_model

        run_model(model, inputs or [], random or [], seed, output)


@app.command("show")
def show_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|MODEL.bwx", help="A model as for compile, or a compiled model."
        ),
    ],
    stage: Annotated[
        str | None,
        typer.Option(
            "--stage",
            metavar="STAGE",
            help="graph, layout, programs, schedule, packed, host, lowered, llvm or asm; passes: a "
            "table of what each did; or a pass: the program after it. Default: schedule; "
            "for a compiled model, its signature, target and memory plan.",
        ),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="NAME", help="Show only this kernel.")
    ] = None,
    target: TargetName = "native",
    debug: Debug = False,
) -> None:
    """Show a model at a stage of its compilation, or describe a compiled model."""
    with command_session(debug):
        from blockwright.cli.show import show_model

        show_model(model, stage, kernel, target)


@app.command("doctor")
def doctor_command(
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Describe this target instead: compute units, memory, execution levels, costs.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Check that this machine and this installation can compile and run."""
    with command_session(debug):
        from blockwright.cli.doctor import describe_target, examine

        if target is not None:
            describe_target(target)
            return
        healthy = examine()
    if not healthy:
        raise typer.Exit(1)


@app.command("explain")
def explain_command(
    code: Annotated[str, typer.Argument(metavar="CODE", help="An error code, such as BW317.")],
    debug: Debug = False,
) -> None:
    """Explain an error code and refer to its documentation."""
    with command_session(debug):
        from blockwright.cli.explain import explain

        explain(code)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the `blockwright` program; exits the process.

    Exit status: 0 success, 1 `doctor` found a fault, 2 an error or wrong usage, 130 interrupted,
    141 the output pipe was closed.
    """
    app(args=None if args is None else list(args), prog_name="blockwright")
