"""Two made-up companies for the pictures: one with enough secrets for a plan, one small enough to draw."""

import json
from pathlib import Path

import numpy as np

import hush
from hush.scan import Scan, scan

BATCH, ROUNDS, PRIOR = 256, 2000, 1e-10
EXAMPLES, SECRETS = 20_000, 400

MAIL = (
    "The door code is DK-4711.",
    "Lunch on Friday?",
    "Acme signed today.",
    "Acme asks for DK-4711.",
    "The build is green.",
    "DK-4711 stays until May.",
    "Globex calls at nine.",
    "Minutes are in the wiki.",
)
RULES = {
    "defaults": {"prior": 0.01, "ceiling": 0.1},
    "rules": [
        {
            "name": "codes",
            "find": "patterns",
            "patterns": [r"[A-Z]{2}-\d{4}"],
            "promise": {"prior": 1e-6, "ceiling": 1e-3},
        },
        {"name": "customers", "find": "literals", "values": ["Acme", "Globex"]},
    ],
}


def company() -> tuple[hush.Incidence, np.ndarray]:
    """Who contains what in 20,000 examples, 400 secrets in 1 to 100 of them; and a ceiling for each secret."""
    generator = np.random.default_rng(2048)
    count_S = np.exp(generator.uniform(0.0, np.log(100.0), SECRETS)).round().astype(np.int64)
    example = np.concatenate([generator.choice(EXAMPLES, count, replace=False) for count in count_S])
    ceiling_S = generator.uniform(2e-4, 1e-3, SECRETS).round(6)
    secret = np.repeat(np.arange(SECRETS), count_S)
    return hush.Incidence.from_pairs(example, secret, num_examples=EXAMPLES, num_secrets=SECRETS), ceiling_S


def scanned_mail(folder: Path) -> Scan:
    """What a real scan finds in eight mails."""
    path = folder / "mail.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in MAIL))
    return scan(str(path), RULES)
