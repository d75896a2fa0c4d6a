"""ChooseImplementations: select the fastest implementation of each operator call.

Before::

    @R.function
    def main(q: R.Tensor((1, 2, 2048, 64), "float32"), k: R.Tensor((1, 2, 65536, 64), "float32")):
        y = R.attention(q, k, k)
        return y

After::

    @R.function
    def main(q: R.Tensor((1, 2, 2048, 64), "float32"), k: R.Tensor((1, 2, 65536, 64), "float32")):
        y = R.attention(q, k, k, implementation="split_kv(block=1024)")
        return y

The candidates and their predicted times are those of the offers (`strategies/offer.py`) for the
operator. If no offer predicts the time of the default, its program is scheduled and the cost model
asked. An offer that raises an exception is passed over, with a warning. A call that has the
attribute is left alone. The options `disabled_implementations` and `disabled_strategies` name
implementations, and strategies whose offers are not considered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from blockwright import ir
from blockwright.ops.implementation import ATTRIBUTE, DEFAULT, text_of
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import map_calls
from blockwright.passes.select.weight_residency import constants_are_uncached
from blockwright.strategies import Candidate, Offer, OperatorCall, Refused, offers_for
from blockwright.strategies.estimates import estimated_seconds
from blockwright.strategies.strategy import fault_text
from blockwright.support.stack import has_room


@graph_pass
def choose_implementations(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Set `implementation` where the offers predict a gain; record what was compared."""
    offers = {name: found for name in OPERATORS if (found := _offers(name, ctx)).others}
    uncached = constants_are_uncached(module, ctx.target)

    def chosen(operator: str, name: str, call: ir.GraphCall) -> ir.GraphCall:
        if call.attrs.get(ATTRIBUTE) is not None:
            return call
        comparison = _compared(_seen(operator, call, uncached), ctx, offers[operator])
        best = comparison.best
        ctx.decisions.setdefault("choose_implementations", []).append(f"{name}: {comparison}")
        return call if best == DEFAULT else call.replace(attrs={**call.attrs, ATTRIBUTE: best})

    return map_calls(module, offers, chosen)


class _Offers(NamedTuple):
    """The offers for an operator: of its default implementation, and of others."""

    default: Offer | None
    others: list[Offer]


def _offers(operator: str, ctx: PassContext) -> _Offers:
    offers = offers_for(operator, ctx.options.get("disabled_strategies", ()))
    skipped = {DEFAULT, *ctx.options.get("disabled_implementations", ())}
    return _Offers(
        next((offer for offer in offers if offer.implementation == DEFAULT), None),
        [offer for offer in offers if offer.implementation not in skipped],
    )


class _Comparison(NamedTuple):
    """The implementation chosen for a call, the predicted times, and the refusals."""

    best: str
    seconds: dict[str, float]
    refusals: list[str]

    def __str__(self) -> str:
        times = ", ".join(f"{text} {time * 1e6:.0f} µs" for text, time in self.seconds.items())
        predicted = [f"predicted: {times}"] if times else []
        return "; ".join([self.best, *predicted, *self.refusals])


def _seen(operator: str, call: ir.GraphCall, uncached: bool) -> OperatorCall:
    assert call.info is not None
    tensors = [arg for arg in call.args if isinstance(arg.info, ir.TensorInfo)]
    return OperatorCall(
        operator,
        tuple(arg.tensor_info for arg in tensors),
        call.info,
        {**OPERATORS[operator].attrs, **call.attrs},
        tuple(isinstance(arg, ir.Constant) for arg in tensors),
        uncached,
    )


def _compared(call: OperatorCall, ctx: PassContext, offers: _Offers) -> _Comparison:
    refusals: list[str] = []
    candidates: list[tuple[Offer, Candidate]] = []
    for offer in offers.others:
        result = _unless_it_fails(offer, call, ctx)
        if isinstance(result, Refused):
            refusals.append(f"not {offer.implementation}: {result.reason}")
        else:
            candidates += [(offer, candidate) for candidate in result]
    best, seconds = DEFAULT, dict[str, float]()
    if not candidates:
        return _Comparison(best, seconds, refusals)
    least = _default_seconds(call, ctx, offers.default)
    if isinstance(least, Refused):
        return _Comparison(best, seconds, [*refusals, f"not compared: {least.reason}"])
    seconds[DEFAULT] = least
    for offer, candidate in candidates:
        text = text_of(offer.implementation, candidate.parameters)
        seconds[text] = candidate.seconds
        if candidate.seconds < offer.share * least:
            best, least = text, candidate.seconds
    return _Comparison(best, seconds, refusals)


def _unless_it_fails(
    offer: Offer, call: OperatorCall, ctx: PassContext
) -> Sequence[Candidate] | Refused:
    """The candidates of an offer; an exception in it is a bug of the offer, not of the program."""
    try:
        return _candidates(offer, call, ctx)
    except Exception as error:
        if isinstance(error, RecursionError) and not has_room():
            raise  # retried with a larger stack
        fault = fault_text(error)
        failed = f"the offer of {offer.implementation} for {call.operator}"
        ctx.report_fault(failed, fault, "it was not considered")
        return Refused(f"its offer failed: {fault}")


def _candidates(
    offer: Offer, call: OperatorCall, ctx: PassContext
) -> Sequence[Candidate] | Refused:
    """The candidates of an offer that the implementation's own rule accepts."""
    row = OPERATORS[call.operator]
    rule = next(each for each in row.implementations if each.name == offer.implementation).why_not
    result = offer.predict(call, ctx.target)
    if isinstance(result, Refused):
        return result
    asked = OpContext(call.operator)
    reasons = [rule(asked, call.infos, call.attrs, each.parameters) for each in result]
    valid = [each for each, reason in zip(result, reasons, strict=True) if not reason]
    return valid or Refused(reasons[0] if reasons else "no parameters are worth considering")


def _default_seconds(call: OperatorCall, ctx: PassContext, offer: Offer | None) -> float | Refused:
    """Predicted time of the default implementation, by its offer or by scheduling it."""
    result = Refused("") if offer is None else offer.predict(call, ctx.target)
    if not isinstance(result, Refused):
        (candidate,) = result
        return candidate.seconds
    if not call.fixed:
        return Refused("nothing predicts the time of the default for symbolic sizes")
    disabled = tuple(ctx.options.get("disabled_strategies", ()))
    return estimated_seconds(call, ctx.target, DEFAULT, disabled)
