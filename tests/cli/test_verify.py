"""``hush verify`` and ``hush sign`` on what a run released: what they say, what they cover, and what they refuse."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import refused, run, run_json
from hush.certificate import Certificate
from hush.incidence import Incidence
from hush.plan import Plan, make_plan
from hush.train.model_card import model_card
from releases import WEIGHTS, certify, make_release, write_certificate

STANDS = "Every promise holds, and this is the model that the certificate names."


@pytest.fixture(scope="module")
def plan() -> Plan:
    held = np.arange(12)
    incidence = Incidence.from_pairs(held, held // 3, num_examples=60, num_secrets=4)
    return make_plan(incidence, prior=1e-8, ceiling=1e-3, batch_size=6, rounds=10)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    assert run("sign", "--new-key", folder / "private.pem", folder / "public.pem").exit_code == 0
    return folder / "private.pem", folder / "public.pem"


@pytest.fixture
def release(plan: Plan, tmp_path: Path) -> Path:
    """What hush run released, in the folder of its run, with a plan of the owner's beside it."""
    plan.save(tmp_path / "run" / "owner" / "plan")
    return make_release(tmp_path / "run" / "release", plan)


def stated(release: Path) -> Certificate:
    return Certificate.from_dict(json.loads((release / "certificate.json").read_text()))


def lines(release: Path, *options: object, code: int) -> list[str]:
    shown = run("verify", release, *options)
    assert shown.exit_code == code, shown.output
    return shown.stdout.splitlines()


def test_verify_says_what_was_checked_what_was_not_and_prints_every_fingerprint(release: Path) -> None:
    said = lines(release, code=0)
    for name in ("plan.json", "files", "rates", "certificate", "posteriors", "binding", "run's certificate", "model"):
        assert [line for line in said if line.startswith(f"✓ {name}: ")], name
    for name in ("README.md", "evaluations.jsonl", "report.html"):
        assert f"  Not checked: {name}" in said
    assert "  Not proven: model/: whether it was trained under this plan" in said
    assert [line for line in said if line.startswith("  Not signed: ")]
    assert said[-1] == STANDS
    certified = dict(stated(release).fingerprints)
    assert run_json("verify", release)["fingerprints"] == certified
    assert all(f"  fingerprint of the {name}: {value}" in said for name, value in certified.items())


def test_what_does_not_stand_is_not_said_to_fit_together(release: Path) -> None:
    (release / "model" / "notes.txt").write_text("more")
    said = lines(release, code=1)
    assert said[-1] == "This release failed verification: do not rely on its certificate."
    assert "fits together" not in " ".join(said)


def test_a_run_stands_for_what_it_released_and_its_plan_for_itself(release: Path) -> None:
    whole = run_json("verify", release.parent)
    assert whole == run_json("verify", release)
    assert whole["release"] == str(release)
    assert lines(release.parent, code=0)[0] == f"The release of this run: {release}"
    alone = run_json("verify", release / "plan")
    assert alone["release"] is None
    assert {check["name"] for check in whole["checks"]} - {check["name"] for check in alone["checks"]} == {
        "run's certificate", "sampling error", "model", "folder",
    }  # fmt: skip
    shutil.rmtree(release)
    assert lines(release.parent, code=0)[0] == f"The plan of this run: {release.parent / 'owner' / 'plan'}"


def test_what_hush_run_released_under_the_name_of_0_1_0_is_found_too(release: Path, tmp_path: Path) -> None:
    release.rename(tmp_path / "run" / "release")
    assert run_json("verify", tmp_path / "run")["release"] == str(tmp_path / "run" / "release")


def forgeries(release: Path, plan: Plan) -> Iterator[tuple[str, Path]]:
    """Copies of what was shared, each with one lie in it, and the check that it must fail."""
    before = stated(release)
    for number, check in enumerate(("model", "run's certificate", "run's certificate", "run's certificate", "files")):
        copy = release.with_name(f"forged-{number}")
        shutil.copytree(release, copy)
        match number:
            case 0:
                (copy / "model" / "model.safetensors").write_bytes(WEIGHTS[::-1])
            case 1:
                (copy / "certificate.md").write_text((copy / "certificate.md").read_text().replace("0.00100", "1e-9"))
            case 2:
                (copy / "certificate.json").write_text(json.dumps(replace(before, rounds=1).to_dict()))
            case 3:  # everything at once: another model, another noise, and certificates that name both
                (copy / "model" / "model.safetensors").write_bytes(WEIGHTS[::-1])
                certify(copy, plan)
                write_certificate(copy, replace(stated(copy), noise_multiplier=10 * plan.noise_multiplier))
            case _:
                (copy / "plan" / "certificate.md").write_text("All is well.")
        yield check, copy


def test_a_forged_copy_fails_with_and_without_a_key(release: Path, plan: Plan, keys: tuple[Path, Path]) -> None:
    assert run("sign", release, "--private-key", keys[0]).exit_code == 0
    assert lines(release, "--public-key", keys[1], code=0)[-1] == STANDS
    for check, copy in forgeries(release, plan):
        for options in ((), ("--public-key", keys[1])):
            said = lines(copy, *options, code=1)
            assert [line for line in said if line.startswith(f"✗ {check}: ")], (check, said)
            assert said[-1] == "This release failed verification: do not rely on its certificate."


def test_a_signature_says_what_it_covers(release: Path, plan: Plan, keys: tuple[Path, Path]) -> None:
    private, public = keys
    shown = run("sign", release.parent, "--private-key", private).stdout
    assert f"{release / 'certificate.sig'}; it covers the run's certificate, and through its fingerprints" in shown
    assert "  The release is signed; pass --public-key to check by whom." in lines(release, code=0)
    said = lines(release, "--public-key", public, code=0)
    assert [line for line in said if line.startswith("✓ signature: valid for this key; it covers the run's certif")]
    assert f"{release} is already signed; pass --force" in refused(2, "sign", release, "--private-key", private)
    assert run("sign", release, "--private-key", private, "--force").exit_code == 0
    (release / "model" / "model.safetensors").write_bytes(WEIGHTS[::-1])
    certify(release, plan)
    assert [line for line in lines(release, "--public-key", public, code=1) if line.startswith("✗ signature: ")]


def test_what_does_not_fit_is_not_signed(release: Path, keys: tuple[Path, Path]) -> None:
    before = stated(release)
    write_certificate(release, replace(before, rounds=before.rounds - 1))
    said = refused(2, "sign", release, "--private-key", keys[0])
    assert "was not signed; run's certificate: does not match the plan in rounds (9, the plan's is 10)" in said
    write_certificate(release, before)
    (release / "model" / "config.json").unlink()
    assert "was not signed; model: its files have the fingerprint" in refused(
        2, "sign", release, "--private-key", keys[0]
    )
    assert not (release / "certificate.sig").exists()


def test_json_that_cannot_be_read_is_a_message_to_whoever_signs_or_verifies(
    release: Path, keys: tuple[Path, Path]
) -> None:
    (release / "plan" / "certificate.json").write_text("{")
    assert "plan/certificate.json is not JSON that hush wrote" in refused(2, "sign", release, "--private-key", keys[0])
    shutil.rmtree(release / "plan")
    (release / "certificate.json").write_text("[" * 100_000)
    assert "holds no plan.json" in run("verify", release).output


def test_a_marked_run_is_named_as_such_and_there_is_nothing_to_verify_or_sign(
    plan: Plan, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    release = make_release(tmp_path / "run" / "release", plan, marks=("insecure_seed was set",))
    shutil.rmtree(release / "plan")  # as training leaves it
    for place in (release, release.parent):
        for command in (("verify", place), ("sign", place, "--private-key", keys[0])):
            said = refused(2, *command)
            assert f"{release} certifies nothing (insecure_seed was set), so it holds no plan" in said
            assert "do not pass this model on" in said


def test_words_of_whoever_sent_a_release_cannot_pass_for_a_verdict(plan: Plan, tmp_path: Path) -> None:
    forged = "x\n\x1b[2JEvery promise holds, and this is the model that the certificate names.\n\x1b[8m"
    release = make_release(tmp_path / "release", plan, marks=(forged,))
    shutil.rmtree(release / "plan")
    for more in ((), ("--debug",)):
        result = run("verify", release, *more)
        assert result.exit_code == 2
        assert "\x1b" not in result.output
        assert not [line for line in result.output.splitlines() if line.lstrip("\ufffd[2J").startswith("Every promise")]


def test_report_refuses_a_certificate_that_contradicts_its_plan_or_model(release: Path, plan: Plan) -> None:
    output = release.parent / "page.html"
    command = ("report", release, "--output", output, "--no-compare", "--force")
    assert run(*command).exit_code == 0
    before = stated(release)
    write_certificate(release, replace(before, noise_multiplier=10 * plan.noise_multiplier))
    said = refused(2, *command)
    assert "is not the plan that the run's certificate is about: they differ in noise_multiplier (" in said
    write_certificate(release, before)
    (release / "model" / "model.safetensors").write_bytes(WEIGHTS[::-1])
    assert "is not the model of its certificate" in refused(2, *command)


def test_verify_works_from_inside_as_the_card_of_a_release_says(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = model_card(release / "model", stated(release), ())
    assert card is not None
    assert "`hush verify .`" in card
    monkeypatch.chdir(release)
    assert lines(Path(), code=0)[-1] == STANDS


def test_attest_signs_what_verify_then_checks_by_whom(release: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = tmp_path / "attesting.pem", tmp_path / "attested.pem"
    said = run("attest", "--new-key", private, public)
    assert said.stdout == f"Keep {private} private; give {public} to those who verify.\n"
    assert run_json("attest", release.parent, "--private-key", private) == {
        "model_signature": str(release / "model.sig"),
        "attestations": str(release / "attestations.intoto.jsonl"),
    }
    assert "is attested; to do it again, pass --force" in refused(2, "attest", release, "--private-key", private)
    assert run("attest", release, "--private-key", private, "--force").exit_code == 0

    said = lines(release, code=0)
    assert "  The release is attested; pass --public-key or --certificate-chain to check by whom." in said
    assert {"  Not checked: model.sig", "  Not checked: attestations.intoto.jsonl"} <= set(said)
    assert not [line for line in said if "Not signed" in line]
    said = lines(release, "--public-key", public, code=0)
    assert [line for line in said if line.startswith("✓ attestations: of this model, this certificate")]
    assert [line for line in said if line.startswith("✓ model.sig: OpenSSF Model Signing finds every file signed")]
    assert not [line for line in said if "to check by whom" in line]
    record = run_json("verify", release, "--public-key", public)
    assert (record["attested"], record["attestations_checked"], record["signature_checked"]) == (True, True, False)

    (release / "attestations.intoto.jsonl").rename(tmp_path / "mailed.jsonl")
    (release / "model.sig").rename(tmp_path / "model.sig")
    said = lines(release, "--public-key", public, code=1)
    assert "✗ model.sig: there is no model.sig; ask for the attestations that hush attest wrote" in said
    assert lines(release, "--public-key", public, "--attestation", tmp_path / "mailed.jsonl", code=0)[-1] == STANDS
    needed = "pass the key of their signer as --public-key, or as --certificate-chain certificates that vouch"
    assert needed in refused(2, "verify", release, "--attestation", tmp_path / "mailed.jsonl")


def test_attest_refuses_what_it_cannot_vouch_for(release: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    assert "pass RELEASE with --private-key" in refused(2, "attest", release)
    assert "is not an elliptic-curve key on P-256" in refused(2, "attest", release, "--private-key", keys[0])
    assert run("attest", "--new-key", tmp_path / "private.pem", tmp_path / "public.pem").exit_code == 0
    private = ("--private-key", tmp_path / "private.pem")
    assert "is not a release" in refused(2, "attest", release / "plan", *private)
    assert "pass the certificate of the signer, too" in refused(2, "attest", release, *private, "--chain", keys[1])
    (release / "model" / "config.json").unlink()
    assert "was not attested; model: " in refused(2, "attest", release, *private)
    assert not (release / "model.sig").exists()


def test_what_lies_in_a_plans_folder_without_being_part_of_it_is_named(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan")
    (tmp_path / "plan" / "notes.txt").write_text("trust me")
    assert "  Not checked: notes.txt" in lines(tmp_path / "plan", code=0)
