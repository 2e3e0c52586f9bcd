"""Random plans and releases, and random ways to tamper with them, for tampering_sweep.py and the tests."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hush
from hush.certificate import Certificate
from hush.keys import DataKey
from hush.plan.files import FILES, SLOTS_FILE, create_keys, files_of, sign, signature_of, tables_of
from hush.plan.make import make_plan_holding_out
from hush.slots import Slots, slots_of_spans
from hush.storage import file_digest, folder_digest, record_digest

Rng = np.random.Generator
TRAINED_PARAMETERS = 1000  # of the runs that releases claim


@dataclass(frozen=True, kw_only=True)
class Case:
    """A folder as its owner wrote it, and what the owner knows."""

    root: Path
    plan: hush.Plan
    released: bool
    public_key: Path
    private_key: Path
    secrets: hush.Secrets

    @property
    def plan_folder(self) -> Path:
        return self.root / "plan" if self.released else self.root


def random_plan(rng: Rng) -> hush.Plan:
    """A few secrets in a few examples; any bound, one or two points, with or without capacities."""
    n, m, points = int(rng.integers(8, 60)), int(rng.integers(1, 9)), int(rng.integers(1, 3))
    sizes = rng.integers(0, min(n, 10), m)
    example = np.concatenate([rng.choice(n, size, replace=False) for size in sizes]).astype(np.int64)
    incidence = hush.Incidence.from_pairs(example, np.repeat(np.arange(m), sizes), num_examples=n, num_secrets=m)
    prior = rng.choice(10.0 ** rng.uniform(-10, -1, 2), (m, points))
    ceiling = prior + (1 - prior) * rng.choice(10.0 ** rng.uniform(-3, -0.3, 2), (m, 1))
    scope = random_scope(rng, incidence) if len(example) and rng.random() < 0.4 else {}
    drawn = np.count_nonzero(incidence.secrets_per_example) if scope else n
    free = np.flatnonzero(incidence.secrets_per_example == 0)
    names_data = not scope or scope["skeleton_fingerprint"] is not None  # who names the data names the skeletons
    plan = make_plan_holding_out(
        incidence,
        free[: int(rng.integers(0, 3))] if scope else [],
        prior=prior,
        ceiling=ceiling,
        batch_size=float(rng.uniform(0.05, 0.6) * drawn),
        rounds=int(rng.integers(1, 200)),
        bound=str(rng.choice(["blowup", "renyi", "kl"], p=[0.7, 0.2, 0.1])),
        capacity="accounted" if rng.random() < 0.1 else "none",
        data_fingerprint=DataKey(bytes(32)).fingerprint_rows(["a"]) if names_data and rng.random() < 0.5 else None,
        **scope,
    )
    return replace(plan, noise_scale=0.5) if rng.random() < 0.1 else plan


def random_scope(rng: Rng, incidence: hush.Incidence) -> dict[str, Any]:
    """Slots for the secrets of some examples, and the fingerprint of some skeletons or none."""
    secret_E = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
    hides_E = (rng.random(incidence.num_examples) < 0.6)[incidence.example_of_entry]
    begin = rng.integers(0, 50, np.count_nonzero(hides_E))
    slots = slots_of_spans(
        incidence,
        ["names"],
        example=incidence.example_of_entry[hides_E],
        begin=begin,
        end=begin + 2,
        rule=np.zeros(len(begin), dtype=np.int64),
        secret=secret_E[hides_E],
    ).slots
    keyed = DataKey(bytes(32)).fingerprint_rows(["b"]) if rng.random() < 0.5 else None
    return {"slots": slots, "skeleton_fingerprint": keyed}


def make_case(rng: Rng, folder: Path) -> Case:
    """A plan or a release, some of them signed."""
    plan, released = random_plan(rng), bool(rng.random() < 0.5)
    folder.mkdir(parents=True)
    create_keys(folder / "private.pem", folder / "public.pem")
    root = folder / "owned"
    plan.save(root / "plan" if released else root)
    if released:
        (root / "model" / "deep").mkdir(parents=True)
        (root / "model" / "model.safetensors").write_bytes(rng.bytes(64))
        (root / "model" / "deep" / "config.json").write_text('{"layers": 1}')
        for name in ("report.html", "README.md", "evaluations.jsonl"):
            (root / name).write_text("{}")
        certify(root, plan.run_certificate(TRAINED_PARAMETERS))
    if rng.random() < 0.6:
        sign(root, folder / "private.pem")
    promises = [hush.Protection.of(*zip(*row, strict=True)) for row in zip(plan.prior, plan.ceiling, strict=True)]
    return Case(
        root=root,
        plan=plan,
        released=released,
        public_key=folder / "public.pem",
        private_key=folder / "private.pem",
        secrets=hush.Secrets(promises, ids=plan.secret_ids),
    )


def certify(root: Path, planned: Certificate, **changes: Any) -> None:
    """Both forms of a run's certificate for whatever model lies there."""
    prints = {**planned.fingerprints, "model": folder_digest(root / "model")}
    made = {"fingerprints": prints, "versions": {**planned.versions, "torch": "2.7.1"}} | changes
    write_certificate(root, replace(planned, **made))


def write_certificate(folder: Path, certificate: Certificate) -> None:
    (folder / "certificate.json").write_text(json.dumps(certificate.to_dict(), indent=2) + "\n")
    (folder / "certificate.md").write_text(certificate.to_markdown())


def seal(plan_folder: Path) -> None:
    """Digests made to fit, as whoever changes a file can."""
    record = json.loads((plan_folder / "plan.json").read_text())
    record["digests"] = {name: file_digest(plan_folder / name) for name in files_of(record)}
    record["digest"] = record_digest(record)
    (plan_folder / "plan.json").write_text(json.dumps(record, indent=2) + "\n")


# Ways to tamper. Each changes the folder of a case.


def every_file(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def flip_byte(rng: Rng, case: Case) -> None:
    path = every_file(case.root)[int(rng.integers(len(every_file(case.root))))]
    content = bytearray(path.read_bytes())
    content[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
    path.write_bytes(content)
    if rng.random() < 0.5 and path.name in (*FILES, SLOTS_FILE) and path.parent == case.plan_folder:
        seal(case.plan_folder)


def cut_or_extend(rng: Rng, case: Case) -> None:
    path = every_file(case.root)[int(rng.integers(len(every_file(case.root))))]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if rng.random() < 0.5 else content + b"\n")


def remove_or_add(rng: Rng, case: Case) -> None:
    folders = [path for path in (case.root, *case.root.rglob("*")) if path.is_dir()]
    folder = folders[int(rng.integers(len(folders)))]
    how = rng.integers(5)
    if how == 0:
        every_file(case.root)[int(rng.integers(len(every_file(case.root))))].unlink()
    elif how == 1:
        (folder / "notes.txt").write_text("approved")
    elif how == 2:
        (folder / "empty").mkdir()
    elif how == 3:
        (folder / "link").symlink_to("/usr")
    else:
        path = folder / str(rng.choice(["round-000001", "plan.sig", "certificate.sig", ".hidden"]))
        path.unlink(missing_ok=True)
        path.mkdir()


def swap_files(rng: Rng, case: Case) -> None:
    first, second = rng.choice(len(every_file(case.root)), 2, replace=False)
    one, other = every_file(case.root)[int(first)], every_file(case.root)[int(second)]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    if rng.random() < 0.5 and (case.plan_folder / "plan.json").is_file():
        _seal_if_possible(case)


def _seal_if_possible(case: Case) -> None:
    try:
        seal(case.plan_folder)
    except (ValueError, KeyError, OSError, TypeError, AttributeError):
        return  # it is no longer a plan


def _places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    below = [each for name, value in inner for each in _places(value, (*place, name))]
    return below or [place]


def _other(rng: Rng, value: Any) -> Any:
    """Another value of the same kind, or of any kind."""
    if rng.random() < 0.1:
        return [None, True, "x", [], {}, 10**400, -1.0][int(rng.integers(7))]
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + int(rng.choice([-1, 1, 5]))
    if isinstance(value, float):
        return value * float(rng.choice([1 - 1e-6, 1 + 1e-6, 0.5, 0.97, 1.03, 10])) if value else 1e-3
    return f"{value}x" if isinstance(value, str) else [*value, 1] if isinstance(value, list) else {}


def change_json(rng: Rng, case: Case) -> None:
    """One value in plan.json, or in one or both certificates, with pages and digests made to fit where they can."""
    name = str(rng.choice(["plan.json", "certificate.json"]))
    roots = [case.plan_folder] if name == "plan.json" or not case.released else [case.root, case.plan_folder]
    chosen = roots if rng.random() < 0.5 else [roots[int(rng.integers(len(roots)))]]
    content = json.loads((chosen[0] / name).read_text())
    places = [place for place in _places(content) if place[0] not in ("digests", "digest")]
    place = places[int(rng.integers(len(places)))]
    for folder in chosen:
        changed = json.loads((folder / name).read_text())
        inner = changed
        try:
            for step in place[:-1]:
                inner = inner[step]
            inner[place[-1]] = _other(rng, inner[place[-1]])
        except (KeyError, IndexError, TypeError):
            continue
        (folder / name).write_text(json.dumps(changed, indent=2) + "\n")
        if name == "certificate.json":
            with suppress(hush.HushError, ValueError, TypeError, KeyError, OverflowError):  # some have no page
                (folder / "certificate.md").write_text(Certificate.from_dict(changed).to_markdown())
    _seal_if_possible(case)


def change_cell(rng: Rng, case: Case) -> None:
    """One cell, label or column of a table, with digests made to fit."""
    tables = tables_of(json.loads((case.plan_folder / "plan.json").read_text()))
    name = str(rng.choice(list(tables)))
    path = case.plan_folder / name
    table = pq.read_table(path)
    labels = dict(table.schema.metadata)
    if rng.random() < 0.15:
        labels[b"note"] = b"approved"
    elif rng.random() < 0.1:
        table = table.append_column("true ceiling", pa.array([1e-9] * len(table)))
    elif len(table):
        column = str(rng.choice(tables[name]))
        values, row = table.column(column).to_pylist(), int(rng.integers(len(table)))
        old = values[row]
        values[row] = [_nudge(rng, old[0]), *old[1:]] if isinstance(old, list) else _nudge(rng, old)
        place = table.schema.get_field_index(column)
        if name == "slots.parquet" and column == "rule":
            values[row] = old  # there is one rule only; a name that is not listed cannot be written
        table = table.set_column(place, column, pa.array(values, table.schema.field(column).type))
    pq.write_table(table.replace_schema_metadata(labels), path)
    seal(case.plan_folder)


def _nudge(rng: Rng, value: Any) -> Any:
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, int):
        return value + 1
    return value * float(rng.choice([1 - 1e-6, 1 + 1e-6, 0.5, 0.97, 1.03])) if value else 1e-3


def _with_less_noise(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    return {"noise_multiplier": plan.noise_multiplier * float(1 - 10 ** rng.uniform(-3, -0.3))}


def _ceilings(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    ceiling = plan.prior + (plan.ceiling - plan.prior) * float(1 - 10 ** rng.uniform(-3, -0.3))
    return {"ceiling": ceiling, "posterior": np.clip(plan.posterior, plan.prior, ceiling)}


def _priors(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    prior = np.minimum(plan.prior * float(1 + 10 ** rng.uniform(-3, 0)), plan.ceiling)
    return {"prior": prior, "posterior": np.maximum(plan.posterior, prior)}


def _posteriors(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    factor = np.where(rng.random(plan.posterior.shape) < 0.5, 1 - 10 ** rng.uniform(-4, -0.3), 1.0)
    return {"posterior": np.clip(plan.posterior * factor, plan.prior, plan.ceiling)}


def _weights(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    bearing = plan.incidence.secrets_per_example > 0
    return {"weights": np.where(bearing, plan.weights, plan.weights * 0.7), "capacity": "accounted"}


def _graph(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    """Pairs left out: the secret seems to be drawn less often."""
    graph = plan.incidence.to_scipy().tolil()
    examples, secrets = graph.nonzero()
    if len(examples):
        which = int(rng.integers(len(examples)))
        graph[examples[which], secrets[which]] = 0
    return {"incidence": hush.Incidence.from_scipy(graph.tocsr())}


def _scope(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    """Other slots, none, slots where there were none, or other held-out examples."""
    if plan.slots is None or plan.held_out is None:
        bearing = plan.incidence.secrets_per_example > 0
        return random_scope(rng, plan.incidence) | {
            "held_out": np.flatnonzero(~bearing)[:1],
            "weights": np.where(bearing, plan.weights, 0.0),
            "posterior": plan.ceiling,
        }
    how = rng.integers(4)
    if how == 0:
        return {"slots": replace(plan.slots, place_L=plan.slots.place_L + 1)}
    if how == 1:
        return {"slots": Slots.none(plan.incidence)}
    if how == 2:
        return {"slots": None, "skeleton_fingerprint": None, "held_out": None}
    return {"held_out": plan.held_out[1:]}


def _binding(rng: Rng, plan: hush.Plan) -> dict[str, Any]:
    listed = set(plan.binding.tolist()) ^ {int(rng.integers(plan.incidence.num_secrets))}
    return {"binding": np.array(sorted(listed), dtype=np.int64)}


REPLACEMENTS: dict[str, Callable[[Rng, hush.Plan], dict[str, Any]]] = {
    "noise": _with_less_noise,
    "noise, posteriors stated as ceilings": lambda rng, plan: _with_less_noise(rng, plan) | {"posterior": plan.ceiling},
    "rounds": lambda rng, plan: {"rounds": plan.rounds + int(rng.integers(1, 40)), "posterior": plan.ceiling},
    "batch": lambda rng, plan: {"batch_size": min(plan.batch_size * 1.1, float(plan.incidence.num_examples) * 0.9),
                                "posterior": plan.ceiling},
    "ceilings": _ceilings,
    "priors": _priors,
    "posteriors": _posteriors,
    "weights": _weights,
    "graph": _graph,
    "scope": _scope,
    "binding": _binding,
    "bound": lambda rng, plan: {"bound": str(rng.choice(["kl", "renyi", "blowup"]))},
    "ids": lambda _, plan: {"secret_ids": tuple(f"{name}x" for name in plan.secret_ids)},
    "scale": lambda _, plan: {"noise_scale": 1.0 if plan.noise_scale != 1 else 0.5},
    "unproven": lambda rng, _: [
        {"created": "2001-01-01T00:00:00+00:00"}, {"clip_norm": 9.0}, {"weights_gap": 0.5}, {"data_fingerprint": None},
        {"skeleton_fingerprint": None},
    ][int(rng.integers(5))],
}  # fmt: skip


def rewrite_plan(rng: Rng, case: Case) -> str:
    """Every file of another plan, written consistently; of a release, the run's certificate too."""
    name = str(rng.choice(list(REPLACEMENTS)))
    try:
        forged = replace(case.plan, **REPLACEMENTS[name](rng, case.plan))
        forged.save(case.plan_folder)
    except hush.HushError:
        return f"plan rewritten: {name}, which a plan cannot state"
    if case.released and rng.random() < 0.7:
        certify(case.root, forged.run_certificate(TRAINED_PARAMETERS))
    return f"plan rewritten: {name}"


def rewrite_certificate(rng: Rng, case: Case) -> None:
    """Both forms of a certificate, consistently, with digests made to fit."""
    folder = case.root if case.released and rng.random() < 0.6 else case.plan_folder
    stated = Certificate.from_dict(json.loads((folder / "certificate.json").read_text()))
    name = str(rng.choice([field.name for field in fields(Certificate)]))
    value = getattr(stated, name)
    if name == "curve":
        value = {key: tuple((p, min(1.0, r * float(rng.choice([0.9, 0.998, 1.002])))) for p, r in points)
                 for key, points in value.items()}  # fmt: skip
    elif isinstance(value, tuple):
        value = value[:-1] if rng.random() < 0.5 else (*value, "more")
    elif isinstance(value, dict):
        value = {key: _other(rng, each) if rng.random() < 0.5 else each for key, each in value.items()}
    else:
        value = _other(rng, value)
    try:
        write_certificate(folder, replace(stated, **{name: value}))
    except (hush.HushError, ValueError, TypeError, KeyError, OverflowError, AttributeError):
        (folder / "certificate.md").write_text("nothing else could be written")
    _seal_if_possible(case)


def change_model(rng: Rng, case: Case) -> None:
    """Another model; half of the time with a certificate that names it."""
    if not case.released:
        return flip_byte(rng, case)
    (case.root / "model" / str(rng.choice(["model.safetensors", "deep/config.json", "new.bin"]))).write_bytes(b"other")
    if rng.random() < 0.5:
        certify(case.root, case.plan.run_certificate(TRAINED_PARAMETERS))
    return None


def change_signature(rng: Rng, case: Case) -> None:
    """The signature of somebody else, of another plan, or none."""
    path = signature_of(case.root)
    if rng.random() < 0.5:
        other = case.root.parent / "other"
        if not other.with_suffix(".private").exists():
            create_keys(other.with_suffix(".private"), other.with_suffix(".public"))
        sign(case.root, other.with_suffix(".private"))
    else:
        path.write_bytes(rng.bytes(64))


TAMPERINGS: dict[str, tuple[float, Callable[[Rng, Case], Any]]] = {
    "a byte flipped": (0.10, flip_byte),
    "a file cut or extended": (0.04, cut_or_extend),
    "a file or folder removed or added": (0.07, remove_or_add),
    "two files swapped": (0.03, swap_files),
    "a value in JSON": (0.17, change_json),
    "a cell, label or column of a table": (0.14, change_cell),
    "plan rewritten": (0.27, rewrite_plan),
    "certificate rewritten": (0.10, rewrite_certificate),
    "another model": (0.05, change_model),
    "another signature": (0.03, change_signature),
}
