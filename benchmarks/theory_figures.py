"""The figures of both leverage papers' theory, redrawn into docs/images.

python -m benchmarks.theory_figures [--images docs/images]
"""

from benchmarks.drawing import publish
from benchmarks.measuring import ROOT, read_options
from giveaway.figures import gap_map
from giveaway.reporting.figures import tradeoff_curves
from giveaway.theory import fixed_design, random_design

FREEDOM = 100


def main() -> None:
    images = read_options(__doc__, images=ROOT / "docs" / "images").images
    figures = {
        "theory_fixed_design": tradeoff_curves(
            {f"h = {h:g}": fixed_design.tradeoff(h) for h in (0.1, 0.3, 0.5, 0.7, 0.9)},
            title="Fixed design, one output (GLS, Figure 5)",
        ),
        "theory_gap": gap_map(FREEDOM),
        "theory_over_error": tradeoff_curves(
            {
                f"ε = {error:g}": random_design(1.0, error, FREEDOM).tradeoff("threshold")
                for error in (0.0, 1.0, 2.0, 3.0, 5.0)
            },
            title="Random design, h̄ = 1 (PSM, Figure 1, middle)",
        ),
        "theory_over_leverage": tradeoff_curves(
            {
                f"h̄ = {leverage:g}": random_design(leverage, 1.0, FREEDOM).tradeoff("threshold")
                for leverage in (0.1, 1.0, 5.0, 20.0, 100.0)
            },
            title="Random design, ε = 1 (PSM, Figure 1, right)",
        ),
    }
    for name, figure in figures.items():
        publish(figure, images / f"{name}.png")


if __name__ == "__main__":
    main()
