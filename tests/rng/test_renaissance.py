"""Every entry of the framework's dumped facts that concerns random numbers."""

import numpy as np
import pytest

import rng
from rng import renaissance as seed_system


@pytest.fixture(scope="module")
def facts(kat):
    return kat("renaissance")


def at(entry):
    return rng.Generator(int(entry["seed"]), int(entry.get("offset", 0)))


def bits(values):
    return [f"{b:08x}" for b in np.asarray(values, np.float32).view(np.uint32).reshape(-1)]


def ulps(values, hexes):
    want = np.array([int(h, 16) for h in hexes], np.uint32).view(np.float32)
    values = np.asarray(values, np.float32).reshape(-1)
    return np.abs(values.astype(np.float64) - want) / np.spacing(np.abs(want))


def test_blocks_uniforms_and_integers(facts):
    for e in facts["philox4x32_10_block"]["v"]:
        got = rng.philox4x32(e["ctr_key"][:4], e["ctr_key"][4:])
        assert [f"{w:08x}" for w in got] == e["out"]
    for seed, offset, words in facts["uint32x4"]["v"]:
        got = seed_system.blocks(int(seed), int(offset), 1)[0]
        assert [f"{w:08x}" for w in got] == words
    for seed, offset, want in facts["uniform_float_bits"]["v"]:
        assert bits(seed_system.uniform(int(seed), int(offset), len(want))) == want
    for seed, offset, want in facts["uint64"]["v"]:
        got = seed_system.uint64(int(seed), int(offset), len(want))
        assert [str(u) for u in got.tolist()] == want
    for e in facts["random_int_inclusive"]["v"]:
        g = at(e)
        assert [seed_system.random_int(g, e["low"], e["high"]) for _ in e["v"]] == e["v"]
        assert g.offset == e["offset_after"]


def test_normal_pairs_within_four_ulp(facts):
    for seed, offset, want in facts["normal_pair_bits"]["v"]:
        got = seed_system.normal_pairs(int(seed), int(offset), len(want))
        assert ulps(got, [h for pair in want for h in pair]).max() <= 4
        assert seed_system.normal_pair(int(seed), int(offset)) == tuple(got[0])


def test_bulk_fills_and_their_offsets(facts):
    for e in facts["arrays"]["v"]:
        g, n, args = at(e), e["count"], e["args"]
        if e["kind"] == "uint64":
            assert [str(u) for u in seed_system.fill_uint64(g, n).tolist()] == e["v"]
        elif e["kind"].startswith("bern"):
            dtype = "int" + e["kind"][4:]
            assert seed_system.fill_bernoulli(g, n, *args, dtype).tolist() == e["v"]
        elif e["kind"] == "uni8":
            assert seed_system.fill_int8(g, n, *args).tolist() == e["v"]
        elif e["kind"] == "uni32":
            assert seed_system.fill_int32(g, n, *args).tolist() == e["v"]
        elif e["kind"] == "unif":
            assert bits(seed_system.fill_uniform(g, n, *args)) == e["v_bits"]
        else:
            assert ulps(seed_system.fill_normal(g, n, *args), e["v_bits"]).max() <= 4
        assert g.offset == int(e["offset_after"])


def test_seeds_and_orders(facts):
    for e in facts["derived_seeds"]["v"]:
        args = int(e["global"]), e["worker"]
        assert str(seed_system.initial_seed(*args)) == e["initial"]
        assert str(seed_system.augment_seed(*args, e["phase"])) == e["augment"]
        assert str(seed_system.shuffle_seed(*args, e["phase"])) == e["shuffle"]
    for e in facts["worker_shuffle"]["v"]:
        seed = seed_system.shuffle_seed(int(e["global"]), e["worker"], e["phase"])
        assert seed_system.shuffle(e["n"], seed).tolist() == e["perm"]
    for e in facts["dataset_shuffle_fresh"]["v"]:
        assert seed_system.shuffle(e["n"], int(e["seed"])).tolist() == e["perm"]
    order = np.arange(facts["framework_cumulative_order"]["n"])
    for epoch, want in enumerate(facts["framework_cumulative_order"]["epochs"]):
        order = seed_system.shuffle(order.size, epoch, order)
        assert order.tolist() == want


def test_their_shuffle_streams_collide():
    seeds = {seed_system.shuffle_seed(1, w, p) for w in range(64) for p in range(300)}
    assert len(seeds) == 320


def test_positions(facts):
    for e in facts["position"]["v"]:
        for worker, calls in enumerate(e["table"]):
            for call, want in enumerate(calls):
                got = seed_system.write_position(call, worker, e["workers"], e["batch"])
                assert list(got) == want


def test_dropout(facts):
    zero = [int(s) for s in facts["dropout"]["note"].split("rotation of zero: ")[1].split(",")]
    s = 0
    for want in zero:
        s = seed_system.rotate_dropout_seed(s)
        assert s == want
    for e in facts["dropout"]["v"]:
        s = seed_system.dropout_rank_seed(int(e["global"]), e["rank"])
        assert str(s) == e["seed"]
        rotated = []
        for want in e["rotated"]:
            s = seed_system.rotate_dropout_seed(s)
            rotated.append(s)
            assert str(s) == want
        for m in e["masks"]:
            if "uniform_bits" in m:
                u = seed_system.dropout_uniform(rotated[m["step"]], len(m["uniform_bits"]))
                assert bits(u) == m["uniform_bits"]
                continue
            keep = seed_system.dropout_mask(rotated[m["step"]], len(m["keep"]), m["p"])
            assert "".join(map(str, keep)) == m["keep"]


def test_ascend_masks(facts):
    for e in facts["ascend_bit_mask"]["v"]:
        args = int(e["seed"]), int(e["offset0"]), int(e["offset1"]), e["n"], e["keep_prob"]
        assert seed_system.ascend_bit_mask(*args).tobytes().hex() == e["bytes"]


def test_erase_rectangles(facts):
    for e in facts["random_erasing"]["v"]:
        g = at(e)
        for want in e["rects"]:
            got = seed_system.erase_rect(g, e["H"], e["W"], e["p"], e["scale"], e["ratio"])
            assert [*(got or (-1, -1, 0, 0)), g.offset] == want


def test_crops(facts):
    for e in facts["random_resized_crop"]["v"]:
        g = at(e)
        for want in e["boxes"]:
            got = seed_system.crop_box(g, e["w"], e["h"])
            assert [*got, g.offset] == [*want[:4], want[8]]
            assert [*seed_system.window(*got, e["w"], e["h"])] == want[4:8]
    for e in facts["fast_random_resized_crop"]["v"]:
        g = at(e)
        for want in e["samples"]:
            outer, inner = seed_system.fast_crop_boxes(g, e["w"], e["h"], e["sdmp"])
            assert list(outer) == want["outer"]
            assert list(seed_system.window(*outer, e["w"], e["h"])) == want["mcu"]
            assert [list(box) for box in inner] == want["inner"]
            assert g.offset == want["offset"]
    for e in facts["random_crop"]["v"]:
        g = at(e)
        for want in e["xy_offset"]:
            got = seed_system.random_crop_place(g, e["w"], e["h"], e["size"])
            assert [*got, g.offset] == want


def test_jitter(facts):
    for e in facts["color_jitter"]["v"]:
        g = at(e)
        for want in e["draws"]:
            got = seed_system.jitter_draws(g, *e["bcsh"])
            assert [[which, *bits(factor)] for which, factor in got] == want


def test_station_batches(facts):
    for e in facts["station_batches"]["v"]:
        got = seed_system.station_batches(
            e["samples"],
            e["batch"],
            e["world"],
            e["rank"],
            drop_last=bool(e["drop_last"]),
            train=bool(e["train"]),
        )
        assert got == e["batches"]
    assert seed_system.station_batches(2, 4, 4, 3) == [[-1]]
    assert seed_system.station_batches(0, 4) == []
    for odd in ((-1, 4), (3, 0), (3, 4, 0), (3, 4, 2, 2)):
        with pytest.raises(ValueError, match="must be"):
            seed_system.station_batches(*odd)


def test_fused_normalization(facts):
    for e in facts["fused_normalization"]["v"]:
        preset = list(seed_system.PRESETS)[e["preset"]]
        channels = len(seed_system.PRESETS[preset][0])
        size = e["H"] * e["W"] * channels
        pixels = ((37 * np.arange(size) + 11) & 255).astype(np.uint8)
        g = at(e)
        got = seed_system.fused_normalization(
            g if e["rng"] else None,
            pixels.reshape(e["H"], e["W"], channels),
            preset,
            half=bool(e["amp"]),
            flip=bool(e["flip"]),
            erase_p=e["erase_p"] if e["erase"] else 0.0,
        )
        assert got.tobytes().hex() == e["hex"], e
        assert got.strides[0] == e["stride"]
        assert g.offset == e["offset_after"]
    with pytest.raises(ValueError, match="preset"):
        seed_system.fused_normalization(None, pixels, "digits")
    with pytest.raises(ValueError, match="pixels"):
        seed_system.fused_normalization(None, pixels.reshape(1, -1, 1), "cifar")


def test_truncated_normals_come_by_rejection():
    g = rng.Generator(5)
    x = seed_system.fill_truncated_normal(g, 1500, 0.0, 1.0, -1.0, 1.0)
    assert x.size == 1500
    assert np.abs(x).max() <= 1
    assert g.offset > 750
    with pytest.raises(ValueError, match="low must be below high"):
        seed_system.fill_int32(g, 3, 5, 5)


def test_numbers_of_numpy_do_not_wrap_and_odd_ones_raise():
    small = np.int8(100)
    assert seed_system.initial_seed(42, small) == seed_system.initial_seed(42, 100)
    assert seed_system.augment_seed(42, small, small) == seed_system.augment_seed(42, 100, 100)
    assert seed_system.shuffle_seed(42, small, small) == seed_system.shuffle_seed(42, 100, 100)
    assert seed_system.write_position(small, small, small, 3) == (3366, 2)
    assert seed_system.random_int(rng.Generator(1), small, np.int8(127)) >= 100
    assert seed_system.erase_rect(rng.Generator(1), np.int8(32), np.int8(32), 1.0)
    for call in (
        lambda: seed_system.uniform(1, 0, -5),
        lambda: seed_system.shuffle(3, 1, np.arange(3000)),
        lambda: seed_system.random_int(rng.Generator(1), 5, 3),
        lambda: seed_system.ascend_bit_mask(1, 1 << 64, 0, 8, 0.9),
        lambda: seed_system.write_position(0, 0, 1, 0),
        lambda: seed_system.fill_truncated_normal(rng.Generator(1), 5, 0.0, 1.0, 6.0, 7.0),
        lambda: seed_system.fill_truncated_normal(rng.Generator(1), 5, 0.0, 1.0, 1.0, -1.0),
    ):
        with pytest.raises(ValueError, match=r"must|no normal"):
            call()
    with pytest.raises(TypeError, match="n must be an int"):
        seed_system.uniform(1, 0, 2.5)


def test_ascends_counter_carries_into_its_upper_half():
    low = seed_system.ascend_bit_mask(7, (1 << 64) - 2, 5, 600, 0.5)
    high = seed_system.ascend_bit_mask(7, 0, 6, 592, 0.5)
    assert (
        np.unpackbits(low, bitorder="little")[8:600] == np.unpackbits(high, bitorder="little")[:592]
    ).all()
