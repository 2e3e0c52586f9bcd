"""The picture of a frontier claims no more than its points show."""

from hush.report.figures import frontier_figure
from hush.weights.frontier import Frontier, FrontierRow


def label(*points: tuple[float, float]) -> str:
    """What the legend says of the star, for rows with this noise and this weight kept."""
    rows = tuple(
        FrontierRow(
            setting=noise, kept_fraction=1.0, kept_weight=kept, total_weight=10.0, effective_size=10.0,
            noise_multiplier=noise, noise_per_gradient=noise / 4, binding=(0,), signal=40 / noise, elbow=7.0,
        )
        for noise, kept in points
    )  # fmt: skip
    figure = frontier_figure([Frontier(capacity="accounted", bound="blowup", batch_size=4, rounds=100, rows=rows)])
    return figure.legends[0].get_texts()[-1].get_text()


def test_the_star_is_the_least_noise_of_the_points_and_not_the_plan_that_would_be_made() -> None:
    said = label((2.0, 1.0), (1.5, 0.95), (1.0, 0.5))
    assert said == "least noise of the points that keep 90 %: 1.50, 95.0 % kept"


def test_where_no_point_keeps_enough_the_star_says_so() -> None:
    assert label((0.5, 0.4), (0.3, 0.03)) == "most data of the points, at a noise of 0.500, 40.0 % kept"
