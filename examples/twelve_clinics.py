"""Made-up patients of twelve clinics, in clinics.csv, and new ones without a diagnosis, in new-patients.csv.

Most clinics are alike but for their size. Two have a scanner that shows its values the other way round, one has older
patients, for whom age says less. No patient is real.
"""

import numpy as np
import pandas as pd

SIZES = {
    "Ahorn": 260, "Birke": 180, "Buche": 420, "Eibe": 60, "Eiche": 340, "Erle": 90,
    "Esche": 150, "Fichte": 220, "Kiefer": 70, "Linde": 300, "Tanne": 120, "Ulme": 200,
}  # fmt: skip
TURNED = {"Eibe", "Fichte"}
OLDER = {"Linde"}


def patients(rng: np.random.Generator, clinic: str, count: int) -> pd.DataFrame:
    age = rng.normal(72 if clinic in OLDER else 58, 10, count)
    marker = rng.normal(size=count)
    pressure = rng.normal(130, 15, count)
    smoker = rng.random(count) < 0.3
    sign = -1 if clinic in TURNED else 1
    risk = (
        1.6 * sign * marker + (0.02 if clinic in OLDER else 0.07) * (age - 60) + 0.03 * (pressure - 130) + 0.8 * smoker
    )
    ill = rng.random(count) < 1 / (1 + np.exp(-2 * risk))
    table = pd.DataFrame(
        {
            "clinic": clinic,
            "age": age.round(),
            "marker": marker.round(2),
            "pressure": pressure.round(),
            "smoker": np.where(smoker, "yes", "no"),
            "diagnosis": np.where(ill, "ill", "well"),
        }
    )
    table.loc[rng.random(count) < 0.05, "pressure"] = np.nan
    return table


def main() -> None:
    rng = np.random.default_rng(7)
    pd.concat(patients(rng, *one) for one in SIZES.items()).to_csv("clinics.csv", index=False)
    new = pd.concat(patients(rng, clinic, 2) for clinic in SIZES)
    new.drop(columns="diagnosis").to_csv("new-patients.csv", index=False)
    print("clinics.csv, new-patients.csv")


if __name__ == "__main__":
    main()
