import numpy as np
import pytest

import rng
from rng import address
from rng.stream import Stream

torch = pytest.importorskip("torch")
words = pytest.importorskip("rng.torch").words

KEY = address.mix64(7)
PARTS = (KEY & address.M32, KEY >> 32)


def test_blocks_equal_the_reference():
    counters = np.random.default_rng(0).integers(0, 1 << 32, (200, 4), dtype=np.uint32)
    counters[:4] = [
        [0] * 4,
        [0xFFFFFFFF] * 4,
        [0xFFFFFFFF, 0, 0, 0],
        [0, 0xFFFFFFFF, 1, 0xFFFFFFFE],
    ]
    columns = torch.from_numpy(counters.astype(np.int64)).unbind(1)
    for key in (PARTS, (0, 0), (0xFFFFFFFF, 0xFFFFFFFF)):
        got = torch.stack(words.philox4x32(columns, key), 1)
        assert (got.numpy() == rng.philox4x32(counters, list(key))).all()


@pytest.mark.parametrize("start", [0, 3, (1 << 32) - 2, (1 << 64) - 2000])
@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 4095])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 1025])
def test_a_stream_of_words_equals_the_reference_from_any_word_on(start, first, n):
    stream = Stream(KEY, address.site(address.USER, 3, 9), 12, start)
    want = stream.uint32(np.empty(n, np.uint32), first)
    got = words.words(start, first, n, 12, stream.c3, PARTS, "cpu")
    assert got.numpy().tolist() == want.tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_compiled_words_equal_eager_ones(inductor):
    def make(x):
        return torch.stack(words.philox4x32((x, x + 1, 12, 7), PARTS), 1) + words.words(
            (1 << 32) - 3, 1, 4 * x.numel(), 12, 7, PARTS, x.device
        ).view(-1, 4)

    x = torch.arange(501)
    assert torch.equal(torch.compile(make, fullgraph=True)(x), make(x))
