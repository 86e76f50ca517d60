"""The split gate; the evidence here is made up."""

import pytest

from dovetail.executor.gpus.splits import (
    Product,
    SmCount,
    SplitEvidence,
    SplitKey,
    Splits,
    keep_splits,
    read_splits,
    reported_sms,
)
from dovetail.instances.datasets import Repository
from dovetail.instances.errors import InputError

KEY = SplitKey("Made-up GPU", "580.1", "13.1.0")


def evidence(share, error=0.5, key=KEY, sms=None):
    products = (
        Product(dtype="float16", m=16, n=1000, k=2048, error=0.1),
        Product(dtype="bfloat16", m=2048, n=2048, k=2048, error=error),
    )
    sms = sms or reported_sms(share, 132)
    return SplitEvidence(
        **key._asdict(), share=share, sms=sms, products=products, date="2026-11-21"
    )


def test_nothing_known_is_nothing_allowed():
    assert Splits().allowed(KEY) == ()
    assert Splits().why(KEY).startswith("no share was measured on Made-up GPU")


def known(*found):
    return Splits(evidence=found)


def test_only_what_has_passed_is_allowed():
    splits = known(evidence(90), evidence(50), evidence(40, 300.0), evidence(100))
    assert splits.allowed(KEY) == (50, 90)
    assert splits.refused(KEY) == (40,)
    where = "Made-up GPU, driver 580.1, cuBLAS 13.1.0"
    assert splits.why(KEY).endswith(f"compute correctly on {where}: 50, 90; wrong: 40")


def test_an_element_that_is_no_number_fails():
    assert known(evidence(50, None)).allowed(KEY) == ()


def test_one_failure_outweighs_every_pass():
    splits = known(evidence(50), evidence(50, 1.01), evidence(50))
    assert splits.allowed(KEY) == ()


def test_shares_of_equally_many_sms_are_one_share():
    splits = known(evidence(10, sms=8), evidence(5, sms=8), evidence(15, sms=8), evidence(50))
    assert splits.allowed(KEY) == (10, 50)
    assert splits.measured(KEY) == {5, 10, 15, 50}
    failed = known(*splits.evidence, evidence(10, 2.0, sms=8))
    assert failed.allowed(KEY) == (50,)
    assert failed.refused(KEY) == (10,)


def test_a_share_counted_like_a_measured_one_needs_no_measuring():
    place = {"gpu_model": KEY.gpu_model, "driver": KEY.driver, "date": "2026-11-22"}
    counts = tuple(SmCount(share=share, sms=sms, **place) for share, sms in ((6, 8), (20, 26)))
    splits = Splits(evidence=(evidence(5, sms=8),), sms=counts)
    assert splits.covered(KEY) == {5, 6}
    assert splits.allowed(KEY) == (5,)
    assert splits.covered(KEY._replace(cublas="12.4.5")) == frozenset()


@pytest.mark.parametrize("field", range(3))
def test_another_gpu_driver_or_library_knows_nothing(field):
    other = SplitKey(*("other" if place == field else part for place, part in enumerate(KEY)))
    splits = known(evidence(50))
    assert splits.allowed(other) == ()


def test_several_libraries():
    older = KEY._replace(cublas="12.4.5")
    splits = known(evidence(50), evidence(30, key=older), evidence(50, 9.0, older))
    assert splits.libraries("Made-up GPU", "580.1") == ("12.4.5", "13.1.0")
    assert splits.allowed_anywhere("Made-up GPU", "580.1") == (30, 50)
    assert splits.allowed_anywhere("other", "580.1") == ()


def test_what_is_kept_is_read_back(tmp_path):
    assert read_splits(tmp_path) == Splits()
    first, second = evidence(50), evidence(40, None)
    for one in (first, second):
        keep_splits(tmp_path, one)
    assert read_splits(tmp_path) == known(first, second)
    found = Repository(tmp_path / "repository.db").evidence("split")
    assert found[1][:5] == ("split", *KEY, second.date)


def test_a_broken_file_is_an_error_and_not_taken_for_empty(tmp_path):
    (tmp_path / "repository.db").write_text("{")
    with pytest.raises(InputError, match=r"repository\.db"):
        read_splits(tmp_path)


def test_counts_of_sms_are_kept_with_the_evidence(tmp_path):
    place = {"gpu_model": "H200", "driver": "580.1", "date": "2026-11-22"}
    counts = [SmCount(share=50, sms=sms, **place) for sms in (64, 66)]
    for count in counts:
        keep_splits(tmp_path, count)
    assert read_splits(tmp_path).seen("H200", "580.1") == {50: 66}
    assert read_splits(tmp_path).seen("H200", "590.1") == {}
    assert not read_splits(tmp_path).allowed_anywhere("H200", "580.1")


@pytest.mark.parametrize(
    ("share", "sms"),
    [(1, 8), (7, 8), (10, 12), (14, 18), (25, 32), (40, 52), (50, 66), (70, 92), (100, 132)],
)
def test_what_others_saw_on_an_h200(share, sms):
    assert reported_sms(share, 132) == sms
