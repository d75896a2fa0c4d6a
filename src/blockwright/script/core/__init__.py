"""Parser core of the script dialects: source text, diagnostics, expression evaluation."""

from blockwright.script.core.evaluator import POISON, Evaluator, MetaVar, special_form
from blockwright.script.core.plain import NodeFacts, items_of, iterable_of, sequence_of
from blockwright.script.core.report import ParseProblem, Poisoned, Reporter
from blockwright.script.core.source import (
    Script,
    caller_environment,
    decorated_class,
    decorated_function,
    in_module_class,
    text_script,
)

__all__ = [
    "POISON",
    "Evaluator",
    "MetaVar",
    "NodeFacts",
    "ParseProblem",
    "Poisoned",
    "Reporter",
    "Script",
    "caller_environment",
    "decorated_class",
    "decorated_function",
    "in_module_class",
    "items_of",
    "iterable_of",
    "sequence_of",
    "special_form",
    "text_script",
]
