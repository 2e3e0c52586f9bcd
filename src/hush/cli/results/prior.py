"""Output of ``hush prior``: one record, printed as JSON or as a table. It holds figures, and no text of a secret."""

from rich.console import Console

from hush.cli.results.accounting import Record
from hush.console import counted, plain, rounded_down, rounded_up, show_rows

__all__ = ["show_priors"]


NAMES = {"listed": "the list is known", "open": "the list is not known"}


def show_priors(record: Record, console: Console) -> None:
    """Print a table for each rule, the refusals, and what the figures mean."""
    for rule in record["rules"]:
        title = (
            f"{rule['rule']}: stated prior {rule['prior']:g}; {counted(rule['secrets'], 'secret')} in "
            f"{counted(rule['slots'], 'slot')}, {rule['guessed']:,} guessed"
        )
        rows = [
            (
                f"{guess['guesser']}, {NAMES[guess['knowledge']]}",
                f"{guess['candidates']:,}",
                f"{guess['hits']:,} of {guess['tried']:,}",
                f"{rounded_down(guess['lower'], 3)} to {rounded_up(guess['upper'], 3)}",
                _verdict(guess["lower"] > rule["prior"]) if guess["compared"] else "not compared",
            )
            for guess in rule["guesses"]
        ]
        if rule["known_values"] is not None:
            values, verdict = rule["known_values"], _verdict(rule["below_known"])
            rows.append(("public by the rule", f"{values:,}", "", f"{1 / values:.3g}", verdict))
        show_rows(console, ("guesser", "candidates", "named", "limits", "stated prior"), rows, title=title)
        for knowledge, value in rule["mean_probability"].items():
            said = f"All guessers together give the right candidate {value:.3g} on average ({NAMES[knowledge]})."
            console.print(plain(f"  {said}"), soft_wrap=True)
    for refusal in record["refusals"]:
        console.print(plain(f"Refused: {refusal}."), style="bold red", soft_wrap=True)
    console.print(
        plain(
            f"The limits hold together at the level {record['level']:g}. They are lower limits on the prior: a low "
            "figure proves nothing, since somebody else may guess better. Keep them to yourself."
        ),
        soft_wrap=True,
    )


def _verdict(is_below: bool) -> str:
    return "too low" if is_below else "not contradicted"
