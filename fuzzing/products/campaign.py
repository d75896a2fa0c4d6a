"""The campaign over random products."""

from __future__ import annotations

from pathlib import Path

from fuzzing.campaign import SECONDS, Campaign, SeedResult
from fuzzing.eager.outcome import Outcome, load
from fuzzing.products.draw import draw
from fuzzing.products.judge import judge, smaller
from fuzzing.products.product import Product
from fuzzing.schedules.isolate import Death, isolated
from fuzzing.smaller import smallest

_MOST = 40
"""Maximum number of smaller products to try."""


def play(seed: int) -> SeedResult:
    """Draw and judge a product; reduce it if it is a finding."""
    product = draw(seed)
    verdict = judge(product, seed)
    if not verdict.is_finding:
        return SeedResult(seed, verdict)

    def fails(less: Product) -> bool:
        return judge(less, seed).symptom == verdict.symptom

    small = smallest(product, smaller, fails, _MOST)
    return SeedResult(seed, verdict, _as_script(small, verdict, seed))


def _died(seed: int, why: str) -> SeedResult:
    """The finding of a seed that ends its process, with the smallest product that does."""

    def dies(product: Product) -> bool:
        return isinstance(isolated(lambda: judge(product, seed), SECONDS / 10), Death)

    verdict = Outcome("internal", why, "the process died")
    return SeedResult(
        seed, verdict, _as_script(smallest(draw(seed), smaller, dies, _MOST), verdict, seed)
    )


def _as_script(product: Product, verdict: Outcome, seed: int) -> str:
    """A script that fails as long as the fault exists."""
    return f"""# {verdict.symptom}: {verdict.words}
from fuzzing.products.judge import judge
from fuzzing.products.product import Product

PRODUCT = {product!r}

verdict = judge(PRODUCT, {seed})
assert verdict.what == "passed", verdict
"""


CAMPAIGN = Campaign("products", Path("build/products"), play, _died, load)
