import numpy as np

from pipeline import transforms as T


def test_bulk_and_one_give_the_same_bytes() -> None:
    images = (np.arange(4 * 32 * 32 * 3) % 251).astype(np.uint8).reshape(4, 32, 32, 3)
    ops = [
        T.RandomCrop(32, padding=4),
        T.RandomHorizontalFlip(),
        T.Normalize(preset="cifar10"),
        T.RandomErasing(p=0.5),
    ]
    chain = T.Chain(ops, (32, 32, 3))
    out = np.empty((64, 3, 32, 32), np.float32)
    ids = np.arange(64) % 4
    chain.apply_bulk(images, ids, np.arange(64, dtype=np.uint64), 3, 12345, 16, out)
    for q in range(64):
        assert np.array_equal(chain.apply_one(images[ids[q]], q, 3, 12345, 16), out[q])
