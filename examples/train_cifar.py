"""Train on CIFAR-10, or on any dataset that has a configuration: a run that may be killed at any moment.

    python examples/train_cifar.py configs/cifar10.toml --set dataset.root=/data --checkpoint run.pt
    python examples/train_cifar.py configs/digits.toml --epochs 2          # needs no files

Kill it and start it again with the same command (or with --set loader.num_workers=5): the digests at the
end are those of the run that nobody killed. Everything hangs on the seed and on a place, not on a history:

    weights at the start   init.materialize   the parameter's name
    batches                the loader         epoch and position
    dropout                bind               the layer's name, the step, the row
    learning rate          `train`            the step, and the number of epochs

so a run that goes on with another --epochs is another run: from there on the learning rate falls to the new end.
A checkpoint is weights, optimiser and a few numbers, in one file. On a CPU the weights are equal bit for
bit, for one number of threads (OMP_NUM_THREADS); on a GPU too, as far as torch's switches reach: the
report that is printed first says what stays open.
"""

import argparse
import hashlib
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import pipeline
import rng.torch
from pipeline.audit import Digest
from pipeline.config import parse_override
from rng.torch import Dropout, DropoutState, bind, init

PARTS = {"model", "optimizer", "loader", "step", "seen"}  # of a checkpoint
WIDTH, DROPOUT = 32, 0.2
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4


class Net(nn.Module):
    """Three convolutions, each of half the size of the one before, and a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        widths = [channels, WIDTH, 2 * WIDTH, 4 * WIDTH]
        self.blocks = nn.Sequential()
        for below, width in pairwise(widths):
            self.blocks.append(nn.Conv2d(below, width, 3, stride=2, padding=1, bias=False))
            self.blocks.append(nn.BatchNorm2d(width))
            self.blocks.append(nn.ReLU())
        self.dropout = Dropout(DROPOUT)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.blocks(images).mean((2, 3))))


def build(loader: Any, device: torch.device) -> tuple[Net, DropoutState]:
    """Return a model for the loader's images, on the device, and the state of its dropout."""
    channels = loader.batch_at(epoch=0, step=0)[0].shape[1]
    with torch.device("meta"):  # no memory, no random numbers yet
        model = Net(channels, len(loader.dataset.classes))
    init.materialize(model, loader.seed, rules={"head.bias": init.zeros_}, device=device)
    return model, bind(model, DropoutState(loader.seed, device))


# ---------------------------------------------------------------- one file
def save(path: Path, parts: dict[str, Any]) -> None:
    """Write a checkpoint: whole or not at all, also if the process is killed here."""
    new = path.with_name(path.name + ".new")
    with open(new, "wb") as file:
        torch.save(parts, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of all weights, statistics and the place of dropout, 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + as_array(tensor).tobytes())
    return digest.hexdigest()[:16]


def load(path: Path) -> dict[str, Any]:
    """Return what `save` wrote.

    Raises:
        SystemExit: the file is something else, or cut off.
    """
    try:
        saved = torch.load(path, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise SystemExit(f"--checkpoint: {path} is no file of torch.save: {error}") from error
    missing = PARTS - saved.keys() if isinstance(saved, dict) else PARTS
    if missing:
        raise SystemExit(
            f"--checkpoint: {path} is no checkpoint of this example: it lacks "
            f"{', '.join(sorted(missing))}; expected another file, or none to begin anew"
        )
    return saved


def as_array(tensor: torch.Tensor) -> Any:
    """Return a tensor's numbers for a digest; those of bfloat16, which numpy has not, as their bits."""
    tensor = tensor.cpu()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


# ---------------------------------------------------------------- the run
def train(config: pipeline.Config, epochs: int, device: Any, checkpoint: Path | None, every: int):
    """Train to the end of `epochs` epochs, from the checkpoint if there is one, and print the digests."""
    loader = pipeline.from_config(config)
    saved = {}
    if checkpoint and checkpoint.exists():
        saved = load(checkpoint)
        loader.load_state_dict(saved["loader"])
    # Before anything touches the GPU; the seed is the configuration's, or that of the saved run.
    print(rng.torch.manual_seed(loader.seed))
    with pipeline.to_device(loader, device) as feeder:
        model, dropout = build(feeder, feeder.device)
        optimizer = torch.optim.SGD(
            model.parameters(), LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        )
        step, seen = 0, Digest()
        if saved:
            model.load_state_dict(saved["model"])  # with the seed and the step of dropout
            optimizer.load_state_dict(saved["optimizer"])
            step, seen = saved["step"], Digest(*saved["seen"])
            print(f"resumed at step {step}, epoch {feeder.epoch}", flush=True)

        def keep() -> None:
            if checkpoint:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                         "loader": feeder.state_dict(), "step": step, "seen": (seen.chain, seen.set)}  # fmt: skip
                save(checkpoint, parts)

        steps = epochs * len(feeder)
        while feeder.epoch < epochs:
            epoch = feeder.epoch
            for images, labels in feeder:
                for group in optimizer.param_groups:
                    group["lr"] = LEARNING_RATE * (1 - step / steps)
                loss = F.cross_entropy(model(images.float()), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                dropout.advance()
                step += 1
                # For the digest batches come back from the device: leave it out where speed counts.
                arrays = [as_array(images), as_array(labels)]
                seen.add(arrays, feeder.last.sample_ids, feeder.last.positions)
                if step % every == 0:
                    keep()
            keep()
            print(f"epoch {epoch}  step {step}  loss {loss.item():.4f}", flush=True)
        print(f"batches {seen.chain}\nweights {weights_digest(model)}")


def at_least_1(text: str) -> int:
    """Return a number of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", help="a TOML file, such as configs/cifar10.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="override a key of the file")  # fmt: skip
    parser.add_argument("--epochs", type=at_least_1, help="in all (default: the file's run.epochs)")
    parser.add_argument("--device", help="cpu, cuda ... (default: cuda where there is one)")
    parser.add_argument("--checkpoint", type=Path, help="resume from this file, and save to it")
    parser.add_argument(
        "--every", type=at_least_1, default=100, help="steps from one saving to the next"
    )
    options = parser.parse_args(arguments)
    # Now, and not after the first hundred steps.
    if options.checkpoint and not options.checkpoint.absolute().parent.is_dir():
        parser.error(f"--checkpoint: no directory {options.checkpoint.parent}; make it first")
    if options.checkpoint and options.checkpoint.is_dir():
        parser.error(f"--checkpoint: {options.checkpoint} is a directory; expected a file's name")
    config = pipeline.load_config(options.config, dict(map(parse_override, options.set)))
    epochs = config.run.epochs if options.epochs is None else options.epochs
    train(config, epochs, options.device, options.checkpoint, options.every)


if __name__ == "__main__":
    main()
