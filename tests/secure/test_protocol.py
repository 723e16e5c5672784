"""The protocol without Flower: the sum is right, whoever drops out; what is wrong is refused by name."""

import contextlib
import dataclasses
import itertools
import json
import threading

import numpy as np
import pytest
from federation import STAGES, Federation, Refused, Stage

from fedbc.secure import graph, primitives
from fedbc.secure.record import File
from fedbc.secure.server import TooFew
from fedbc.secure.session import agreement

SIGMA = 6.5
"""None of 64 bits of 29 sums is so far from a coin's throw by chance in a million runs: signatures, and all keys that
come from them, are new ones each time."""


@pytest.mark.parametrize("devices", [2, 3, 4, 7, 50])
def test_the_sum_is_that_of_the_vectors(devices):
    federation = Federation(devices)
    np.testing.assert_array_equal(federation.sum(), federation.plain(range(devices)))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("gone", [g for n in range(1, 5) for g in itertools.combinations(range(4), n)])
def test_every_pattern_of_four_devices_that_drop_out_at_a_stage(stage, gone):
    """The sum of those that sent their vectors if the threshold is kept (three of four), otherwise nothing.

    Of two that advertised keys alone, the threshold is two.
    """
    federation = Federation(4)
    if len(gone) > (2 if stage == Stage.KEYS else 1):
        with pytest.raises((TooFew, Refused), match=r"left after stage|neighbours, at least|neighbourhood survived"):
            federation.sum(dict.fromkeys(gone, stage))
        return
    counted = set(range(4)) - (set() if stage in (Stage.AGREE, Stage.UNMASK) else set(gone))
    np.testing.assert_array_equal(federation.sum(dict.fromkeys(gone, stage)), federation.plain(counted))


def test_devices_that_drop_out_at_different_stages():
    federation = Federation(10)
    found = federation.sum({0: Stage.SHARES, 1: Stage.MASKED, 2: Stage.AGREE})
    np.testing.assert_array_equal(found, federation.plain(range(2, 10)))
    found = federation.sum({0: Stage.KEYS, 1: Stage.AGREE, 2: Stage.UNMASK}, attempt=2)
    np.testing.assert_array_equal(found, federation.plain(range(1, 10)))


def test_fewer_than_the_minimum_are_never_unmasked():
    federation = Federation(6, minimum=6)
    with pytest.raises(TooFew, match="5 devices are left after stage masked, at least 6 are needed"):
        federation.sum({5: Stage.MASKED})
    gathering = federation.until(Stage.AGREE, attempt=2)
    gathering.survivors.discard(5)  # a server that would rather not know
    with pytest.raises(Refused, match="it has 5 survivors, fewer than the minimum of 6"):
        federation.tell(gathering, 0)
    with pytest.raises(Refused, match="a sum of 1 devices may be asked for: the least is 2"):
        federation.tell(federation.gathering(3, minimum=1), 0)


def test_the_sum_of_any_part_of_the_devices_is_uniform():
    """What the server receives, added up over any proper subset, tells nothing: every bit is a coin's throw."""
    federation = Federation(4, length=4096)
    federation.vectors[:] = np.arange(4, dtype=np.uint64)[:, None] + np.uint64(1)  # constants: nothing random in them
    gathering = federation.until(Stage.UNMASK)
    masked = {d: np.frombuffer(a, "<u8") for stage, d, a in federation.seen if stage == Stage.MASKED}
    parts = [p for n in range(1, 5) for p in itertools.combinations(range(4), n)]
    for part in parts:
        total = np.sum([masked[d] for d in part], axis=0, dtype=np.uint64)
        # All four together are still under their own masks, the seeds, until these are revealed.
        bits = np.unpackbits(total.view(np.uint8)).reshape(-1, 64)
        apart = np.abs(bits.mean(axis=0) - 0.5).max() / (0.5 / np.sqrt(len(total)))
        assert apart < SIGMA, (part, apart)
        octets = np.bincount(total.view(np.uint8), minlength=256)
        expected = octets.sum() / 256
        assert abs(((octets - expected) ** 2 / expected).sum() - 255) < 2 * SIGMA * np.sqrt(2 * 255), part
    federation.advance(gathering)
    assert set(gathering.sum()) == {1 + 2 + 3 + 4}


def test_after_unmasking_a_part_of_the_sum_still_hides_in_the_pairs_masks():
    """With all that the server ever learns (every survivor's seed) a proper subset's sum stays uniform."""
    federation = Federation(4, length=4096)
    federation.vectors[:] = 7
    gathering = federation.until(Stage.UNMASK)
    federation.advance(gathering)
    masked = {d: np.frombuffer(a, "<u8") for stage, d, a in federation.seen if stage == Stage.MASKED}
    for part in (p for n in range(1, 4) for p in itertools.combinations(range(4), n)):
        total = np.zeros(4096, np.uint64)
        for d in part:
            seed = gathering._secret(d, "seed")
            total += masked[d] - primitives.keystream(primitives.seed_key(seed, gathering._roster), 4096)
        bits = np.unpackbits(total.view(np.uint8)).reshape(-1, 64)
        assert np.abs(bits.mean(axis=0) - 0.5).max() / (0.5 / np.sqrt(len(total))) < SIGMA


def test_an_attempt_has_masks_of_its_own():
    """The same vectors, masked twice: the difference is as random as each."""
    federation = Federation(3)
    federation.sum()
    federation.sum(attempt=2)
    first, second = ([a for s, d, a in federation.seen if s == Stage.MASKED][i] for i in (0, 3))
    assert first != second
    keys = [json.loads(a) for s, d, a in federation.seen if s == Stage.KEYS]
    assert len({entry[name] for entry in keys for name in ("encryption", "masking", "commitment")}) == 18


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_order_again_gets_the_same_bytes(stage, tmp_path):
    """Also from a new process: the answer was on the disk before it was given."""
    federation = Federation(3, store=lambda device: File(tmp_path / f"{device}.safetensors"))
    gathering = federation.until(stage)
    first = federation.tell(gathering, 0)
    called = []
    again = federation.devices[0].answer(stage, gathering.session, gathering.order(0), lambda: called.append(1))
    assert again == first
    assert not called


@pytest.mark.parametrize("stage", STAGES[1:])
def test_another_order_of_an_answered_stage_is_refused(stage):
    """No second mask over another vector, no second share of another kind."""
    federation = Federation(4)
    gathering = federation.until(stage)
    federation.tell(gathering, 0)
    other = {Stage.SHARES: b"[]", Stage.MASKED: b"{}", Stage.AGREE: b"[0,1,2]", Stage.UNMASK: b"{}"}[stage]
    with pytest.raises(Refused, match=f"another order of stage {stage} came in the same attempt"):
        federation.devices[0].answer(stage, gathering.session, other, lambda: federation.vectors[0])


def test_never_both_shares_of_a_peer():
    """Over all lists of survivors that a server can think of, and though all other devices sign each of them."""
    for first in ([0, 1, 2], [0, 1, 3], [0, 2, 3], [0, 1, 2, 3]):
        federation = Federation(4)
        gathering = federation.until(Stage.AGREE)
        pairs = dict(federation.devices[0].store.record.shares)
        answers = []
        for survivors in (first, [0, 1, 2], [0, 1, 3], [0, 2, 3], [0, 1, 2, 3]):
            signed = {
                d: primitives.signed(key, agreement(gathering.session, gathering._roster, survivors)).hex()
                for d, key in federation.signing.items()
                if d in survivors
            }
            with contextlib.suppress(Refused):
                federation.devices[0].answer(Stage.AGREE, gathering.session, json.dumps(survivors).encode(), None)
            with contextlib.suppress(Refused):
                order = json.dumps(signed).encode()
                answers.append(json.loads(federation.devices[0].answer(Stage.UNMASK, gathering.session, order, None)))
        assert answers
        for of, pair in pairs.items():
            kinds = {answer[str(of)] == pair[:20].hex() for answer in answers}
            assert len(kinds) == 1
        assert pairs[0][:20].hex() == answers[0]["0"]


def test_secrets_are_deleted_after_the_round(tmp_path):
    federation = Federation(3, store=lambda device: File(tmp_path / f"{device}.safetensors"))
    gathering = federation.until(Stage.UNMASK)
    before = federation.devices[0].store.load()
    secrets = [before.encryption, before.masking, before.seed, *before.shares.values()]
    assert all(secrets)
    federation.advance(gathering)
    after = federation.devices[0].store.load()
    assert [after.encryption, after.masking, after.seed, after.shares] == [b"", b"", b"", {}]
    content = (tmp_path / "0.safetensors").read_bytes()
    assert not any(secret.hex().encode() in content or secret in content for secret in secrets[:3])
    assert (tmp_path / "0.safetensors").stat().st_mode & 0o77 == 0


def refused(federation, gathering, device, match, **other):
    with pytest.raises(Refused, match=match):
        federation.tell(gathering, device, **other)


def test_orders_out_of_order_and_of_other_attempts():
    federation = Federation(3)
    fresh = federation.gathering()
    for stage in STAGES[1:]:
        refused(federation, fresh, 0, f"stage {stage} came without the stages before it", stage=stage)
    gathering = federation.until(Stage.SHARES, attempt=5)
    refused(federation, gathering, 0, "stage masked came out of order: the next one is shares", stage=Stage.MASKED)
    refused(
        federation, gathering, 0, "an order of attempt 4 came after one of attempt 5", session=federation.session(4)
    )
    other = dataclasses.replace(gathering.session, round=2)
    refused(federation, gathering, 0, "is for another round, purpose or layout", session=other)
    other = dataclasses.replace(gathering.session, minimum=3)
    refused(federation, gathering, 0, "is for another round, purpose or layout", session=other)
    while gathering.done < len(STAGES):
        federation.advance(gathering)
    refused(federation, federation.gathering(5), 0, "stage keys came after attempt 5 was over", stage=Stage.KEYS)


def test_keys_that_are_not_signed_by_a_registered_key_are_refused():
    federation, stranger = Federation(4), Federation(5, seed=1)
    federation.devices[3].signing = stranger.signing[4]
    gathering = federation.gathering()
    answer = federation.tell(gathering, 3)
    with pytest.raises(Refused, match="keys of device 3 are not signed with its registered key for this attempt"):
        gathering.take(3, answer)
    for device in range(3):
        gathering.take(device, federation.tell(gathering, device))
    gathering.close()
    gathering.entries[3] = gathering.entries[2]._replace(device=3)  # a server that puts keys of its own in the list
    refused(federation, gathering, 0, "keys of device 3 are not signed")
    gathering.entries[9] = gathering.entries.pop(3)._replace(device=9)
    refused(federation, gathering, 0, "device 9 is not in the list of registered devices")


def test_keys_of_another_attempt_are_refused():
    federation = Federation(3)
    old = federation.until(Stage.SHARES, attempt=1)
    new = federation.until(Stage.SHARES, attempt=2)
    new.entries[1] = old.entries[1]
    refused(federation, new, 0, "keys of device 1 are not signed with its registered key for this attempt")


def test_shares_of_another_attempt_do_not_decrypt():
    federation = Federation(3)
    old = federation.until(Stage.MASKED, attempt=1)
    new = federation.until(Stage.MASKED, attempt=2)
    new.shared[1] = old.shared[1]
    refused(federation, new, 0, "share that device 1 sent: it does not decrypt")
    new.shared[1] = {0: new.shared[2][0]}
    refused(federation, new, 0, "share that device 1 sent: it does not decrypt")


LISTS = {
    "not JSON": (b"\xff", "keys cannot be read|shares cannot be read"),
    "not a list": (b"{}", "not a list"),
    "not entries": (b"[1]", "not an entry"),
    "nobody": (b"[]", "lists 0 devices, fewer than the minimum of 2"),
}


@pytest.mark.parametrize("what", LISTS)
def test_malformed_lists_of_keys(what):
    federation = Federation(3)
    gathering = federation.until(Stage.SHARES)
    order, match = LISTS[what]
    with pytest.raises(Refused, match=match):
        federation.devices[0].answer(Stage.SHARES, gathering.session, order, None)


def test_lists_of_keys_that_do_not_hold_together():
    federation = Federation(3)
    gathering = federation.until(Stage.SHARES)
    good = json.loads(gathering.order(0))

    def send(order, match):
        with pytest.raises(Refused, match=match):
            federation.devices[0].answer(Stage.SHARES, gathering.session, json.dumps(order).encode(), None)

    send([*good, good[1]], "name a device twice")
    send(good[1:], "other keys for this device than it sent")
    send([good[0], good[1] | {"masking": "zz"}], "masking is not hexadecimal")
    send([good[0], good[1] | {"masking": "00"}], "other lengths than 32 bytes")
    send([good[0], good[1] | {"device": "1"}], "device is '1', not a whole number")
    send([good[0], good[1] | {"masking": "00" * 32}, good[2]], "device 1 are not signed")


def test_malformed_orders_to_mask_to_agree_and_to_unmask():
    federation = Federation(4)
    gathering = federation.until(Stage.MASKED)
    good = json.loads(gathering.order(0))

    def send(stage, order, match):
        with pytest.raises(Refused, match=match):
            federation.devices[0].answer(
                stage, gathering.session, json.dumps(order).encode(), lambda: federation.vectors[0]
            )

    send(Stage.MASKED, [], "not listed by device")
    send(Stage.MASKED, good | {"9": good["1"]}, "shares of device 9, which is no neighbour")
    send(Stage.MASKED, {"1": good["1"]}, "shares of 1 neighbours, at least 2 are needed")
    send(Stage.MASKED, good | {"1": "zz"}, "not hexadecimal")
    send(Stage.MASKED, good | {"1": good["1"][:-2]}, "share that device 1 sent: it does not decrypt")
    federation.advance(gathering, gone={3})
    send(Stage.AGREE, {}, "not a list of devices")
    send(Stage.AGREE, [1, 0], "not in order, each once")
    send(Stage.AGREE, [0, 0, 1], "not in order, each once")
    send(Stage.AGREE, [1, 2], "a sum that it is not in")
    send(Stage.AGREE, [0, 1, 7], "were not all there")
    send(Stage.AGREE, [0, 1], "fewer than 3 of this device's neighbourhood survived")
    send(Stage.AGREE, [0, 1, -2], "not a whole number")
    federation.advance(gathering)
    good = json.loads(gathering.order(0))
    send(Stage.UNMASK, [], "not listed by device")
    send(Stage.UNMASK, {}, "0 devices signed who survived, at least 3 are needed")
    send(Stage.UNMASK, good | {"3": good["2"]}, "a signature of device 3, which is no survivor")
    send(Stage.UNMASK, good | {"1": good["2"]}, "device 1 did not sign the survivors that this device was told of")
    send(Stage.UNMASK, good | {"1": "zz"}, "not hexadecimal")


def test_a_server_that_tells_each_device_another_list_of_survivors_learns_nothing():
    """Each is told of seven survivors, the minimum; without agreement the shares would unmask the sum of six."""
    federation = Federation(10, minimum=7)
    gathering = federation.until(Stage.AGREE)
    left_out = {6, 7, 8, 9}
    kept = {device: device if device in left_out else 6 + device % 4 for device in range(10)}
    lists = {device: sorted(set(range(10)) - left_out | {kept[device]}) for device in range(10)}
    assert all(sum(gone not in told for told in lists.values()) >= graph.threshold(10) for gone in left_out)
    signed = {
        device: json.loads(
            federation.devices[device].answer(
                Stage.AGREE, gathering.session, json.dumps(survivors).encode(), lambda: None
            )
        )
        for device, survivors in lists.items()
    }
    for device, survivors in lists.items():
        same = {d: text for d, text in signed.items() if lists[d] == survivors}
        any_list = {d: text for d, text in signed.items() if d in survivors}
        for order, match in (
            (same, r"\d devices signed who survived, at least 7 are needed"),
            (any_list, r"device \d did not sign the survivors that this device was told of"),
        ):
            with pytest.raises(Refused, match=match):
                federation.devices[device].answer(
                    Stage.UNMASK, gathering.session, json.dumps(order).encode(), lambda: None
                )


def test_signatures_of_another_attempt_are_refused():
    federation = Federation(3)
    old, new = federation.until(Stage.UNMASK, attempt=1), federation.until(Stage.UNMASK, attempt=2)
    new.agreed[1] = old.agreed[1]
    refused(federation, new, 0, "device 1 did not sign the survivors")


def test_a_survivor_that_sent_no_shares_is_refused():
    federation = Federation(4)
    gathering = federation.until(Stage.AGREE, gone={3})
    gathering.survivors.add(3)
    assert 3 not in gathering.entries
    refused(federation, gathering, 0, "were not all there at the beginning")
    late = Federation(4)
    gathering = late.until(Stage.SHARES)
    late.advance(gathering, gone={3})
    late.advance(gathering)
    gathering.survivors.add(3)
    refused(late, gathering, 0, "device 3 is said to have survived, and sent no shares")


ANSWERS = {
    Stage.KEYS: {b"1": "not an entry", b"\x00": "cannot be read"},
    Stage.SHARES: {
        b"[]": "not listed by device",
        b"{}": "not for its neighbours, one for each",
        b'{"0":"00","2":"00"}': "other lengths than encrypted shares",
    },
    Stage.MASKED: {b"": "has 0 bytes, not 40", b"1" * 41: "has 41 bytes, not 40"},
    Stage.AGREE: {b"1": "not hexadecimal", b'"00"': "did not sign the survivors that it was told of"},
    Stage.UNMASK: {
        b"{}": "not of its neighbourhood, one of each",
        b'{"0":"00","1":"00","2":"00"}': "other lengths than shares",
    },
}


@pytest.mark.parametrize("stage", STAGES)
def test_malformed_answers_are_refused_by_the_server(stage):
    federation = Federation(3)
    gathering = federation.until(stage)
    deep = {} if stage == Stage.MASKED else {b"[" * 100_000: "cannot be read"}
    for answer, match in (ANSWERS[stage] | deep).items():
        with pytest.raises(Refused, match=match):
            gathering.take(1, answer)
    answer = federation.tell(gathering, 1)
    gathering.take(1, answer)
    with pytest.raises(Refused, match=f"device 1 answered twice at stage {stage}"):
        gathering.take(1, answer)
    if stage == Stage.KEYS:
        with pytest.raises(Refused, match="its keys are those of device 1"):
            gathering.take(0, answer)
    else:
        with pytest.raises(Refused, match=f"device 9 was not asked at stage {stage}"):
            gathering.take(9, answer)


def test_shares_that_do_not_fit_are_found_out():
    federation = Federation(3)
    gathering = federation.until(Stage.UNMASK, gone=())
    for device in range(3):
        shares = json.loads(federation.tell(gathering, device))
        shares["1"] = shares["1"][:8] + "00" * 16
        gathering.take(device, json.dumps(shares).encode())
    gathering.close()
    with pytest.raises(Refused, match=r"shares of device 1's seed (give another seed|are not different)"):
        gathering.sum()


def test_the_sum_before_the_last_stage_is_refused():
    federation = Federation(3)
    with pytest.raises(Refused, match="cannot be unmasked before stage unmask is over"):
        federation.until(Stage.UNMASK).sum()


def test_two_orders_at_the_same_time_are_worked_on_one_after_the_other(tmp_path):
    """Each might otherwise find the stage unanswered: one mask over two vectors."""
    federation = Federation(3, store=lambda device: File(tmp_path / f"{device}.safetensors"))
    gathering = federation.until(Stage.MASKED)
    good = json.loads(gathering.order(0))
    began, goes_on, second_began = threading.Event(), threading.Event(), threading.Event()
    said = {}

    def first_vector():
        began.set()
        assert goes_on.wait(60)
        return federation.vectors[0]

    def second_vector():
        second_began.set()
        return federation.vectors[1]

    def work(name, order, vector):
        another_process = dataclasses.replace(federation.devices[0], store=File(tmp_path / "0.safetensors"))
        try:
            said[name] = another_process.answer(Stage.MASKED, gathering.session, order, vector)
        except Refused as error:
            said[name] = str(error)

    first = threading.Thread(target=work, args=("first", gathering.order(0), first_vector))
    second = threading.Thread(target=work, args=("second", json.dumps(good, indent=1).encode(), second_vector))
    first.start()
    assert began.wait(60)
    second.start()
    try:
        assert not second_began.wait(0.5)
    finally:
        goes_on.set()
    first.join(60)
    second.join(60)
    assert len(said["first"]) == 8 * federation.length
    assert said["second"] == "another order of stage masked came in the same attempt"


def test_a_device_that_lost_its_record_takes_part_in_the_next_attempt(tmp_path):
    federation = Federation(3, store=lambda device: File(tmp_path / f"{device}.safetensors"))
    gathering = federation.until(Stage.MASKED)
    (tmp_path / "1.safetensors").write_bytes(b"torn")
    refused(federation, gathering, 1, "stage masked came without the stages before it")
    np.testing.assert_array_equal(federation.sum(attempt=2), federation.plain(range(3)))


def test_the_graph_of_many_devices():
    """Random, the same for all, another one each time; all pairs for few."""
    devices = list(range(100))
    one, other = (graph.neighbours(devices, seed) for seed in (b"1", b"2"))
    assert one == graph.neighbours(devices, b"1") != other
    assert {len(near) for near in one.values()} == {graph.degree(100)} == {54}
    assert all(device in one[near] for device in devices for near in one[device])
    assert all(len(near) == 46 for near in graph.neighbours(list(range(47)), b"").values())
    assert graph.is_connected(devices, one)
    assert not graph.is_connected([0, 1], {0: (2,), 1: (3,)})
    for number in range(2, 500):
        holders = graph.degree(number) + 1
        assert 2 * graph.threshold(number) > holders
        assert graph.threshold(number) <= holders


def test_contiguous_devices_that_drop_out_keep_the_threshold():
    """Ten of a hundred, one after the other in number: no neighbourhood of a random graph falls below two thirds."""
    devices = list(range(100))
    failed = 0
    for seed in range(200):
        near = graph.neighbours(devices, str(seed).encode())
        left = set(range(10, 100))
        failed += any(len(left & {d, *near[d]}) < graph.threshold(100) for d in devices)
    assert failed == 0


def test_a_graph_that_falls_apart_is_not_unmasked():
    federation = Federation(4)
    gathering = federation.until(Stage.AGREE)
    apart = {0: (1,), 1: (0,), 2: (3,), 3: (2,)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "is_connected", lambda devices, near: False)
        refused(federation, gathering, 0, "fall into parts that share no mask")
    assert not graph.is_connected(range(4), apart)


def test_a_public_key_of_low_order_is_refused():
    with pytest.raises(Refused, match="not one of X25519"):
        primitives.agreed(bytes(range(32)), bytes(32), b"", "mask 0 1")
