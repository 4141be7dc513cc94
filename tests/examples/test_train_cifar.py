"""examples/train_cifar.py on made-up CIFAR files: killed in mid-epoch and continued, the same weights."""

import numpy as np
import pytest

from tests.helpers import python

torch = pytest.importorskip("torch")

IMAGES, BATCH, EPOCHS = 200, 16, 2
STEPS = IMAGES // BATCH  # of an epoch: drop_last

# As the shell does it.
RUN = "from examples.train_cifar import main; import sys; main(sys.argv[1:])"

# The process is killed between writing the checkpoint of step 20, in the second epoch, and putting
# it into its place: that of step 15 is what is left.
KILLED = """
import os, signal, sys
from examples import train_cifar as example
put, count = os.replace, 0
def replace(*names):
    global count
    if str(names[1]).endswith("run.pt"):
        count += 1
        if count == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    put(*names)
os.replace = replace
example.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with CIFAR-10's five files, of 40 images each."""
    root = tmp_path_factory.mktemp("cifar")
    draw = np.random.default_rng(3)
    for i in range(1, 6):
        records = draw.integers(0, 256, (IMAGES // 5, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (root / f"data_batch_{i}.bin").write_bytes(records.tobytes())
    return root


def train(data, *more, code=RUN, **sets):
    sets = {"dataset.root": data, "loader.batch_size": BATCH, "loader.num_workers": 0} | sets
    overrides = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    arguments = ["configs/cifar10.toml", *overrides, "--epochs", EPOCHS, "--device", "cpu", *more]
    # One thread: several spin where others want the processors too.
    return python(code, *arguments, check=code == RUN, env={"OMP_NUM_THREADS": "1"})


def digests(done):
    """(batches, weights), the last two lines."""
    lines = done.stdout.splitlines()[-2:]
    assert [line.split()[0] for line in lines] == ["batches", "weights"]
    return [line.split()[1] for line in lines]


def test_killed_while_saving_and_continued_with_other_workers_it_ends_in_the_same_weights(
    data, tmp_path
):
    want = digests(train(data))
    checkpoint = tmp_path / "run.pt"
    saving = ("--checkpoint", checkpoint, "--every", 5)
    killed = train(data, *saving, code=KILLED, **{"loader.num_workers": 2})
    assert killed.returncode == -9, killed.stderr
    assert "weights" not in killed.stdout
    resumed = train(data, *saving, **{"loader.num_workers": 1, "loader.worker_method": "thread"})
    assert "resumed at step 15, epoch 1" in resumed.stdout
    assert digests(resumed) == want
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.pt"]


def test_the_digest_sees_every_number_of_the_model():
    from examples import train_cifar as example

    model = example.init.materialize(example.Net(3, 10), 7)
    state = example.bind(model, example.DropoutState(7))
    found = {example.weights_digest(model)}
    for tensor in (*model.parameters(), *model.buffers()):
        with torch.no_grad():
            tensor.view(-1)[-1:].add_(1)
        found.add(example.weights_digest(model))
    state.advance()
    found.add(example.weights_digest(model))
    assert len(found) == 2 + len(list(model.parameters())) + len(list(model.buffers()))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--epochs", "0"], "--epochs: expected a whole number of 1 or more, got '0'"),
        (["--every", "0"], "--every: expected a whole number of 1 or more, got '0'"),
        (["--every", "x"], "--every: expected a whole number of 1 or more, got 'x'"),
        (["--checkpoint", "{}/no/run.pt"], "no directory {}/no"),
        (["--checkpoint", "{}"], "{} is a directory"),
    ],
    ids=["epochs", "every", "word", "no-directory", "directory"],
)
def test_arguments_that_cannot_work_are_refused_at_the_start(arguments, text, tmp_path, capsys):
    from examples import train_cifar as example

    with pytest.raises(SystemExit) as ended:
        example.main(["no-such-file.toml", *(a.format(tmp_path) for a in arguments)])
    assert ended.value.code == 2
    assert text.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"not a checkpoint", r"is no file of torch\.save"),
        (b"", r"is no file of torch\.save"),
        ({"model": {}, "step": 3}, "it lacks loader, optimizer, seen"),
        ([1, 2], "it lacks loader, model, optimizer, seen, step"),
    ],
    ids=["garbage", "empty", "parts", "list"],
)
def test_a_file_that_is_no_checkpoint_is_refused_by_name(content, text, tmp_path):
    from examples import train_cifar as example

    path = tmp_path / "run.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(SystemExit, match=text) as ended:
        example.load(path)
    assert str(path) in str(ended.value)


def test_a_checkpoint_that_was_cut_off_is_refused(tmp_path):
    from examples import train_cifar as example

    path = tmp_path / "run.pt"
    example.save(path, dict.fromkeys(example.PARTS, torch.ones(1000)))
    assert example.load(path).keys() == example.PARTS
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SystemExit, match=r"is no file of torch\.save"):
        example.load(path)


def test_numbers_of_bfloat16_have_a_digest_of_their_bits():
    from examples import train_cifar as example

    x = torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16)
    assert example.as_array(x).tolist() == [[0x3F80, 0xC000 - 65536]]
    assert example.as_array(x.float()).tolist() == [[1.0, -2.0]]
