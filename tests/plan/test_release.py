"""Whoever gets a released model can rely on its certificate: no file that it is about can be changed unnoticed."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import hush
from hush.certificate import DATA_FINGERPRINT, Certificate
from hush.keys import DataKey
from hush.plan.files import FILES, create_keys, is_release, sign
from hush.storage import file_digest, record_digest
from releases import WEIGHTS, certify, make_release, write_certificate

NOT_CHECKED = ("README.md", "evaluations.jsonl", "report.html")
OF_THE_RUN = {"run's certificate", "model", "folder"}


@pytest.fixture(scope="module")
def original(plan: hush.Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed release that is never changed; its keys lie beside it."""
    root = tmp_path_factory.mktemp("original")
    create_keys(root / "private.pem", root / "public.pem")
    sign(make_release(root / "release", plan), root / "private.pem")
    found = hush.verify(root / "release", public_key=root / "public.pem")
    assert found.passed
    assert found.unchecked == NOT_CHECKED
    assert {check.name for check in found.checks} >= {*OF_THE_RUN, "posteriors", "signature"}
    return root / "release"


@pytest.fixture
def release(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "release")
    return tmp_path / "release"


@pytest.fixture
def key(original: Path) -> Path:
    return original.parent / "public.pem"


def failed(folder: Path, **options: Any) -> set[str]:
    return {check.name for check in hush.verify(folder, **options).checks if not check.passed}


def detail(folder: Path, name: str, **options: Any) -> str:
    (found,) = (check for check in hush.verify(folder, **options).checks if check.name == name)
    assert not found.passed
    return found.detail


def sealed(plan: Path) -> None:
    """Digests made to fit, as whoever changes a file can."""
    record = json.loads((plan / "plan.json").read_text())
    record["digests"] = {name: file_digest(plan / name) for name in FILES}
    (plan / "plan.json").write_text(json.dumps(record | {"digest": record_digest(record)}))


def stated(release: Path) -> Certificate:
    return Certificate.from_dict(json.loads((release / "certificate.json").read_text()))


def every_file(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_byte_of_a_signed_release_can_be_changed(
    original: Path, key: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Of any file but those that are named as not checked; signed or not, with or without a key."""
    name = data.draw(st.sampled_from([name for name in every_file(original) if name not in NOT_CHECKED]))
    content = bytearray((original / name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    shutil.rmtree(tmp_path / "release", ignore_errors=True)
    shutil.copytree(original, tmp_path / "release")
    (tmp_path / "release" / name).write_bytes(content)
    if name == "plan/plan.json":
        assume(content.translate(None, b" \n\r\t") != (original / name).read_bytes().translate(None, b" \n\r\t"))
    assert not hush.verify(tmp_path / "release", public_key=key).passed, name
    if not name.endswith(".sig"):
        assert not hush.verify(tmp_path / "release").passed, name


def test_no_file_can_be_removed(original: Path, key: Path, tmp_path: Path) -> None:
    for name in every_file(original):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(original, copy)
        (copy / name).unlink()
        assert hush.verify(copy, public_key=key).passed == (name in NOT_CHECKED), name
    for name in ("model", "plan"):
        copy = tmp_path / f"without-{name}"
        shutil.copytree(original, copy)
        shutil.rmtree(copy / name)
        assert failed(copy) >= {"model" if name == "model" else "plan.json"}
        assert not hush.verify(copy, public_key=key).passed


@pytest.mark.parametrize(
    ("name", "check"),
    [("model/pytorch_model.bin", "model"), ("model/deep/er.txt", "model"), ("better-model/model.safetensors", "folder"),
     ("plan/notes.txt", "folder"), ("certificate.pdf", "folder"), ("plan.json", "folder")],
)  # fmt: skip
def test_no_file_can_be_added(release: Path, name: str, check: str) -> None:
    (release / name).parent.mkdir(parents=True, exist_ok=True)
    (release / name).write_text("trust me")
    assert failed(release) == {check}


@pytest.mark.parametrize("name", ["plan", "plan/plan.json"])
def test_a_file_for_a_folder_and_a_folder_for_a_file_are_failed_checks(release: Path, name: str) -> None:
    path = release / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()
    assert "holds no plan.json" in detail(release, "plan.json")


def test_what_is_not_checked_is_named_and_may_change(release: Path, key: Path) -> None:
    (release / "round-000010").mkdir()
    for name in NOT_CHECKED:
        (release / name).write_text("anything")
    found = hush.verify(release, public_key=key)
    assert found.passed
    assert found.unchecked == ("README.md", "evaluations.jsonl", "report.html", "round-000010/")


def test_a_plan_copied_over_a_release_does_not_make_it_a_plan(release: Path) -> None:
    """Every file of the plan beside the model: the plan by itself is sound, but says nothing about a model."""
    for path in (release / "plan").iterdir():
        shutil.copyfile(path, release / path.name)
    assert failed(release) == OF_THE_RUN
    assert hush.verify(release / "plan").passed


def test_links_and_odd_names_that_a_fingerprint_does_not_see_are_refused(release: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (release / "model" / "more").symlink_to(tmp_path / "elsewhere")
    assert "model/more/ is a link" in detail(release, "model")
    (release / "model" / "more").unlink()
    model = release / "model"
    first, second = sorted(path.name for path in model.iterdir())
    forged = f"{first}\n{file_digest(model / first)}\n{second}"  # one file with the names and digests of two
    (model / second).rename(model / forged)
    (model / first).unlink()
    assert "odd name" in detail(release, "model")


@pytest.mark.parametrize("name", ["more", "deep/er"])
def test_an_empty_folder_inside_a_model_fails(release: Path, name: str) -> None:
    """It belongs to no file, so no fingerprint covers it."""
    (release / "model" / name).mkdir(parents=True)
    assert failed(release) == {"model"}
    assert f"model/{name}/ is an empty folder" in detail(release, "model")


def test_a_model_without_files_fails_even_if_the_certificate_names_it(release: Path, plan: hush.Plan) -> None:
    shutil.rmtree(release / "model")
    (release / "model").mkdir()
    certify(release, plan)
    assert failed(release) == {"model"}


def test_signatures_that_were_not_checked_are_named(release: Path, key: Path) -> None:
    sign(release / "plan", key.with_name("private.pem"))
    assert set(hush.verify(release).unchecked) == {*NOT_CHECKED, "certificate.sig", "plan/plan.sig"}
    assert set(hush.verify(release, public_key=key).unchecked) == {*NOT_CHECKED, "plan/plan.sig"}
    (release / "plan" / "plan.sig").unlink()
    (release / "plan" / "plan.sig").mkdir()
    (release / "plan" / "plan.sig" / "notes.txt").write_text("sound")
    assert "plan/plan.sig/" in hush.verify(release).unchecked


SETTINGS: dict[str, Callable[[Certificate], Any]] = {
    "noise_multiplier": lambda it: 10 * it.noise_multiplier,
    "rounds": lambda it: it.rounds - 1,
    "kept_fraction": lambda it: 1.0 - it.kept_fraction / 2,
    "num_secrets": lambda it: it.num_secrets + 1,
    "num_found": lambda it: it.num_found + 1,
    "strictest": lambda it: {**it.strictest, "largest_ceiling": 1e-9},
    "binding": lambda _: (),
    "curve": lambda it: {name: tuple((p, min(r, 2 * p)) for p, r in points) for name, points in it.curve.items()},
    "assumptions": lambda it: it.assumptions[:-1],
    "not_covered": lambda _: (),
    "created": lambda _: "2001-01-01T00:00:00+00:00",
    "versions": lambda it: {**it.versions, "hush": "1\n- certified by everybody"},
    "fingerprints": lambda it: {**it.fingerprints, "weights": "ab" * 32},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_certificate_that_promises_other_than_its_plan_fails_in_both_forms(release: Path, name: str) -> None:
    """The forger writes JSON and page to fit each other, and the model is the right one."""
    forged = replace(stated(release), **{name: SETTINGS[name](stated(release))})
    write_certificate(release, forged)
    assert failed(release) == {"run's certificate"}
    assert (name if name != "fingerprints" else "fingerprint of the weights") in detail(release, "run's certificate")


def test_a_difference_is_told_with_its_values(release: Path, plan: hush.Plan) -> None:
    noise = plan.noise_multiplier
    write_certificate(release, replace(stated(release), noise_multiplier=10 * noise))
    assert f"noise_multiplier ({10 * noise!r}, the plan's is {noise!r})" in detail(release, "run's certificate")


def test_the_two_forms_must_say_the_same(release: Path, original: Path) -> None:
    page = (release / "certificate.md").read_text()
    for changed in (page.replace("nobody", "no one"), page + "\nTrust me.\n", page.replace("\n", "\r\n")):
        (release / "certificate.md").write_bytes(changed.encode())
        assert "certificate.md" in detail(release, "run's certificate")
    shutil.copyfile(original / "certificate.md", release / "certificate.md")
    content = json.loads((release / "certificate.json").read_text())
    (release / "certificate.json").write_text(json.dumps(content | {"note": "approved"}, indent=2) + "\n")
    assert "holds more than that" in detail(release, "run's certificate")
    (release / "certificate.json").write_text("[" * 100_000)
    assert failed(release) == {"run's certificate", "model"}


VERSIONS = [{"approved-by": "1"}, {"torch": "sound-says-the-board"}, {"hush": "\u0661"}, {"torch": "2.7.1"}]


@pytest.mark.parametrize("more", VERSIONS, ids=str)
def test_versions_can_say_nothing_else(release: Path, plan: hush.Plan, more: dict[str, str]) -> None:
    """Not even where the certificate of the plan says it, too: each stands on a line of its own on the page."""
    planned = {name: version for name, version in more.items() if name != "torch"}
    forged = replace(plan.certificate, versions={**plan.certificate.versions, **planned})
    write_certificate(release / "plan", forged)
    sealed(release / "plan")
    certify(release, plan, versions={**forged.versions, "torch": "2.7.1+cpu", **more})
    assert hush.verify(release).passed == (more == {"torch": "2.7.1"})


def places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where values stand in JSON."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [place, *(below for name, value in inner for below in places(value, (*place, name)))]


def with_value(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """JSON with another value at a place."""
    if not place:
        return value
    changed = dict(content) if isinstance(content, dict) else list(content)
    changed[place[0]] = with_value(content[place[0]], place[1:], value)
    return changed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1) | st.just(10**400) | st.floats(0, 1) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_certificate_of_any_shape_is_judged_and_never_passes(
    release: Path, original: Path, data: st.DataObject
) -> None:
    """Either certificate, or both alike; the page stays, as nothing else could be written for most shapes."""
    folders = data.draw(st.sampled_from([["."], ["plan"], [".", "plan"]]))
    true = json.loads((original / folders[0] / "certificate.json").read_text())
    place = data.draw(st.sampled_from(places(true)))
    value = data.draw(JSON)
    for folder in folders:
        own = json.loads((original / folder / "certificate.json").read_text())
        assume(place in places(own))
        changed = with_value(own, place, value)
        assume(repr(changed) != repr(own))
        (release / folder / "certificate.json").write_text(json.dumps(changed, indent=2) + "\n")
    sealed(release / "plan")
    assert not hush.verify(release).passed
    for folder in folders:
        shutil.copyfile(original / folder / "certificate.json", release / folder / "certificate.json")


@pytest.mark.parametrize("fingerprints", [[], {"model": 1}, {}, {"model": "ab" * 32}, "model"])
def test_fingerprints_of_another_shape_fail(release: Path, fingerprints: Any) -> None:
    content = json.loads((release / "certificate.json").read_text())
    (release / "certificate.json").write_text(json.dumps(content | {"fingerprints": fingerprints}, indent=2) + "\n")
    assert failed(release) == {"run's certificate", "model"}


def test_another_model_fails_and_with_a_certificate_to_fit_it_fails_for_the_key(
    release: Path, plan: hush.Plan, key: Path
) -> None:
    """Files alone cannot say who wrote them: a forger who names their own model must lack the key."""
    (release / "model" / "model.safetensors").write_bytes(WEIGHTS[::-1])
    assert failed(release) == failed(release, public_key=key) == {"model"}
    certify(release, plan)
    assert failed(release) == set()
    assert failed(release, public_key=key) == {"signature"}


def test_a_release_of_another_plan_fails_even_if_that_plan_is_sound(release: Path, plan: hush.Plan, key: Path) -> None:
    other = replace(plan, created="2001-01-01T00:00:00+00:00")
    shutil.rmtree(release / "plan")
    other.save(release / "plan")
    assert hush.verify(release / "plan").passed
    assert failed(release, public_key=key) == {"run's certificate"}


def test_the_signature_of_a_plan_does_not_vouch_for_a_model(release: Path, key: Path) -> None:
    """Nor can a signature of the release be replaced by one that was given for its plan."""
    private = key.with_name("private.pem")
    sign(release / "plan", private)
    shutil.move(release / "plan" / "plan.sig", release / "certificate.sig")
    assert "not valid for this key and this certificate.json and certificate.md" in detail(
        release, "signature", public_key=key
    )
    (release / "certificate.sig").unlink()
    sign(release / "plan", private)
    assert "covers only the plan and not this model" in detail(release, "signature", public_key=key)
    assert hush.verify(release / "plan", public_key=key).passed


def test_a_run_may_add_marks_and_leave_out_unchecked_data(plan: hush.Plan, tmp_path: Path) -> None:
    marked = hush.verify(make_release(tmp_path / "marked", plan, marks=("a fixed seed",)))
    assert marked.passed
    assert marked.certificate is not None
    assert not marked.certificate.is_real
    tied = replace(plan, data_fingerprint=DataKey(bytes(32)).fingerprint_rows(["a"]))
    assert hush.verify(make_release(tmp_path / "tied", tied)).passed
    names = {name: value for name, value in stated(tmp_path / "tied").fingerprints.items() if name != DATA_FINGERPRINT}
    write_certificate(tmp_path / "tied", replace(stated(tmp_path / "tied"), fingerprints=names))
    found = hush.verify(tmp_path / "tied")
    assert found.passed
    assert any("training did not check" in check.detail for check in found.checks)
    names[DATA_FINGERPRINT] = DataKey(bytes(32)).fingerprint_rows(["b"])
    write_certificate(tmp_path / "tied", replace(stated(tmp_path / "tied"), fingerprints=names))
    assert failed(tmp_path / "tied") == {"run's certificate"}


def test_marks_of_the_plan_cannot_be_left_out(plan: hush.Plan, tmp_path: Path) -> None:
    simulated = replace(plan, noise_scale=0.5)
    assert hush.verify(make_release(tmp_path / "release", simulated)).passed
    certify(tmp_path / "release", simulated, marks=())
    assert failed(tmp_path / "release") == {"run's certificate"}


def test_a_release_of_another_format_is_not_verified(release: Path, key: Path) -> None:
    record = json.loads((release / "plan" / "plan.json").read_text())
    record["format"] = "1.2"
    (release / "plan" / "plan.json").write_text(json.dumps(record | {"digest": record_digest(record)}))
    assert failed(release) == failed(release, public_key=key) == {"plan.json"}


def test_what_is_a_release(original: Path, plan: hush.Plan, tmp_path: Path) -> None:
    assert is_release(original)
    assert not is_release(original / "plan")
    assert not is_release(tmp_path)
    assert not is_release(tmp_path / "missing")
    plan.save(tmp_path / "plan")
    assert not is_release(tmp_path)  # a folder that holds a plan, and nothing of a run
    os.mkfifo(tmp_path / "model")
    assert failed(tmp_path) == {"run's certificate", "model"}
