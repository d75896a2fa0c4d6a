"""`blockwright explain`: explain an error code."""

from __future__ import annotations

from textwrap import indent

from blockwright.cli.samples import SAMPLES
from blockwright.cli.session import output
from blockwright.support import OptionError
from blockwright.support.codes import CODES, FAMILIES

_READ_ON = {
    "1": "docs/ir-grammar.md lists every construct of both dialects",
    "2": "docs/semantics.md defines valid programs and their meaning",
    "3": "help(blockwright.Schedule.STEP) states what the step requires; docs/refusals.md",
    "4": "docs/new-operator.md describes the declaration of an operator",
    "5": "README.md lists the supported models",
    "6": "blockwright show MODEL --stage lowered; docs/looking-inside.md",
    "7": "docs/semantics.md lists the checks of calls; docs/looking-inside.md, sanitizers",
    "8": "compile the model again with blockwright compile; docs/architecture.md",
    "9": "blockwright COMMAND --help",
}


def explain(code: str) -> None:
    """Print the title and family of a code, an example if there is one, and a reference to the
    documentation. Raises: OptionError: BW925 unknown code."""
    wanted = code.upper()
    if wanted not in CODES:
        raise OptionError(
            f"unknown error code {code!r}",
            code="BW925",
            help='write it as errors print it, such as "BW317"; docs/errors.md lists all codes',
        )
    digit = wanted[2]
    text = f"{wanted}: {CODES[wanted]}\n  family: {FAMILIES[digit]} (BW{digit}xx)"
    if wanted in SAMPLES:
        text += "\n  a rejected schedule and a corrected one:\n\n"
        text += indent(SAMPLES[wanted].text(), "    ") + "\n"
    if digit in _READ_ON:
        text += f"\n  see: {_READ_ON[digit]}"
    output().print(text, markup=False)
