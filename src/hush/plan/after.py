"""A release of a chain: what it may do, given the releases before it and those that are announced.

Each kind of release says which rounds and noise it may have, answers what the choice of weights asks (``account``), and
then states the chain of the plan that was chosen (``finish``). The rules: a secret that was there before keeps its
limits, or its orders and what it spent. A new secret, or one that was merged from several, gets the largest limit that
the announced releases leave it, given the limits under which its examples were drawn before; under a filter, the order
that the same rule chooses for everyone, and all log-moments of its examples at this order.

Legend: S secrets, Q promised points of a secret, R releases.
"""

from collections.abc import Sequence

from hush.accounting.releases import Shape
from hush.errors import InvalidInput
from hush.plan.chain import Filter, Series
from hush.plan.of_series import FirstOfSeries, OfSeries
from hush.plan.promised import (
    Promised,
    ReleaseRefused,
)
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.plan.under_filter import UnderFilter

__all__ = ["OfSeries", "Promised", "Release", "ReleaseRefused", "UnderFilter", "release_of"]

Release = FirstOfSeries | OfSeries | UnderFilter


def release_of(
    promised: Promised,
    *,
    series: SeriesSettings | None,
    shapes: Sequence[Shape] | None,
    filter: FilterSettings | None,
) -> Release | None:
    """The kind of release that is asked for; None for one that stands alone."""
    if sum(one is not None for one in (series, shapes, filter)) > 1:
        raise InvalidInput("a chain is a series or a filter: pass one of series, shapes and filter")
    history = promised.history
    _ = promised.raised  # refuses other priors than before
    if not history.earlier:
        if filter is not None:
            return UnderFilter(promised=promised, share=filter.share)
        if shapes is not None:
            return OfSeries(promised=promised, shapes=tuple(shapes))
        return None if series is None else FirstOfSeries(promised=promised, settings=series)
    chain = history.chain
    if chain is not None and isinstance(chain.kind, Series):
        _check_announced(chain.kind, series, shapes, filter)
        return OfSeries(promised=promised, shapes=chain.kind.shapes)
    if series is not None or shapes is not None:
        raise InvalidInput(
            "a series is announced before its first release, and the earlier releases here are none; add this release "
            "under a filter instead"
        )
    if filter is None:
        if chain is None or not isinstance(chain.kind, Filter):
            raise InvalidInput(
                "the earlier release was not announced as one of a series, so later ones are added under a filter; "
                "pass the share of the budget that each may spend"
            )
        filter = FilterSettings(share=chain.kind.share)
    return UnderFilter(promised=promised, share=filter.share)


def _check_announced(
    kind: Series, series: SeriesSettings | None, shapes: Sequence[Shape] | None, filter: FilterSettings | None
) -> None:
    count = len(kind.shapes)
    if filter is not None:
        raise InvalidInput("the earlier releases are of a series; a filter cannot be added to it: drop it")
    if (series is not None and series.count != count) or (shapes is not None and tuple(shapes) != kind.shapes):
        raise InvalidInput(f"the earlier releases announced a series of {count}; it cannot be changed: pass the same")
    if kind.number == count:
        raise InvalidInput(
            f"all {count} announced releases of this series are made; start a new chain for new secrets, or plan the "
            "next releases without the secrets of this one"
        )
