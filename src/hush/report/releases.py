"""The releases of a chain: the card of the report that says which release this is, and the page of a ledger."""

from collections.abc import Sequence
from pathlib import Path

from hush.ledger.spending import ReleaseSpending, SecretSpending, Spending, shares_left
from hush.numbers import counted
from hush.plan import Plan
from hush.report.markup import at_least, at_most, percent_at_least, percent_at_most, table
from hush.report.markup import shown as escaped
from hush.report.page import Section, figure, page
from hush.report.plots import Plot, left_plot, releases_plot
from hush.storage import whole_file

__all__ = ["chain_sentence", "ledger_page", "ledger_section", "write_ledger_page"]


MAX_SECRETS = 200  # of the table: the most used
TITLE = "Releases under one promise"


def chain_sentence(plan: Plan) -> str:
    """Which release of a chain a plan is for, and what is left after it; empty for a release by itself."""
    chain = plan.chain
    if chain is None:
        return ""
    if chain.count is not None:
        left = chain.count - chain.number
        return (
            f"Release {chain.number} of {chain.count} under one promise, which holds after all of them together; "
            f"{left} left."
        )
    least = float(shares_left(plan).min(initial=1.0))
    return (
        f"Release {chain.number} under one promise, which holds after all releases so far together; every secret has "
        f"at least {percent_at_least(least, 3)} of its budget left."
    )


def ledger_page(spending: Spending) -> str:
    """The page of a ledger: its releases, what they used, and the most used secrets. It names secrets by id only."""
    if not spending.releases:
        return page(TITLE, "<p>No training has begun with this ledger.</p>\n", [], None)
    plots: list[Plot] = [releases_plot(spending), left_plot(spending)]
    shown = spending.secrets[:MAX_SECRETS]
    sections = [
        Section(
            name="releases",
            link="Releases",
            title="What the releases used",
            html=figure(plots[0], heading=False) + _releases_table(spending.releases),
            plots=(plots[0],),
        ),
        Section(
            name="left",
            link="Left",
            title="What is left",
            html=figure(plots[1], heading=False) + _secrets_table(shown, len(spending.secrets)),
            plots=(plots[1],),
        ),
    ]
    return page(TITLE, f"<p>{_head(spending)}</p>\n", sections, None)


def ledger_section(spending: Spending, notes: Sequence[str]) -> Section:
    """For the owner's report: what the releases so far used, and what earlier ones saw of the data.

    notes: sentences about secrets that earlier releases did not protect, or that are no longer found.
    """
    plots = (releases_plot(spending), left_plot(spending))
    told = "".join(f'<p class="banner bad" role="alert">{escaped(note)}.</p>\n' for note in notes)
    return Section(
        name="chain",
        link="Releases",
        title=TITLE,
        html=f"{told}<p>{_head(spending)}</p>\n"
        + "".join(figure(plot) for plot in plots)
        + _releases_table(spending.releases),
        plots=plots,
    )


def write_ledger_page(spending: Spending, path: Path) -> None:
    """Write the page; only its owner can read it, and it appears complete or not at all."""
    content = ledger_page(spending)
    with whole_file(path, owner_only=True) as file:
        file.write(content.encode())


def _head(spending: Spending) -> str:
    done = len(spending.releases)
    if spending.count is not None:
        return (
            f"{done} of {spending.count} announced releases have begun. The promise of every secret holds after all "
            f"{spending.count} of them together."
        )
    return (
        f"{counted(done, 'release')}, each planned when it came. The promise of every secret holds after all of them "
        "together."
    )


def _releases_table(releases: Sequence[ReleaseSpending]) -> str:
    rows = [
        (
            f"{row.entry.number}",
            "abandoned" if row.entry.abandoned and row.entry.state == "started" else row.entry.state,
            row.entry.began[:10],
            f"{row.examples:,}",
            f"{row.secrets:,}",
            at_most(row.noise_multiplier),
            f"{row.rounds:,}",
            percent_at_least(row.kept_weight, 3),
            percent_at_most(row.used_most, 3),
        )
        for row in releases
    ]
    columns = ["release", "state", "began", "examples", "secrets", "noise", "rounds", "weight kept", "most used"]
    return table(columns, rows, caption="Releases")


def _secrets_table(secrets: Sequence[SecretSpending], number: int) -> str:
    rows = [
        (
            row.secret,
            f"{len(row.releases):,}",
            at_least(row.prior),
            at_most(row.ceiling),
            at_most(row.spent),
            percent_at_least(row.left, 3),
        )
        for row in secrets
    ]
    caption = "All secrets" if number == len(secrets) else f"The {len(secrets)} most used of {number:,} secrets"
    return table(["secret", "releases", "prior", "promised", "spent", "left"], rows, caption=caption)
