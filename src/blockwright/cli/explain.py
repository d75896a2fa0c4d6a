"""`blockwright explain`: what an error code stands for."""

from __future__ import annotations

from textwrap import indent

from blockwright.cli.samples import SAMPLES
from blockwright.cli.session import output
from blockwright.support import OptionError
from blockwright.support.codes import CODES, FAMILIES

_READ_ON = {
    "1": "docs/ir-grammar.md has every construct of both dialects",
    "2": "docs/semantics.md says which programs are valid, and what they mean",
    "3": "help(blockwright.Schedule.STEP) states what the step requires; docs/refusals.md",
    "4": "docs/new-operator.md says what an operator states about itself",
    "5": "README.md says which models are covered",
    "6": "blockwright show MODEL --stage lowered; docs/looking-inside.md",
    "7": "docs/semantics.md says what calls check; docs/looking-inside.md has the sanitizers",
    "8": "compile the model again with blockwright compile; docs/architecture.md",
    "9": "blockwright COMMAND --help",
}


def explain(code: str) -> None:
    """Print rule, family, a refused schedule with its repair where there is one, and where to read
    on. Raises: OptionError: BW925 no such code."""
    wanted = code.upper()
    if wanted not in CODES:
        raise OptionError(
            f"there is no error code {code!r}",
            code="BW925",
            help='write it as errors print it, such as "BW317"; all of them stand '
            "in docs/errors.md",
        )
    digit = wanted[2]
    text = f"{wanted}: {CODES[wanted]}\n  family: {FAMILIES[digit]} (BW{digit}xx)"
    if wanted in SAMPLES:
        text += "\n  a refused schedule, and one that is not:\n\n"
        text += indent(SAMPLES[wanted].text(), "    ") + "\n"
    if digit in _READ_ON:
        text += f"\n  see: {_READ_ON[digit]}"
    output().print(text, markup=False)
