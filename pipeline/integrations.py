"""What trainers need besides a loader. Imports transformers.

trainer = Trainer(..., callbacks=[StatefulTrainerCallback()])      # get_train_dataloader is yours
trainer.train(resume_from_checkpoint=True)
"""

import logging
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from pipeline.errors import StateError

_log = logging.getLogger("samebatch")
_NAME = "StatefulTrainerCallback"


class StatefulTrainerCallback(TrainerCallback, ExportableState):
    """Keeps the training loader's state in each checkpoint of transformers' Trainer.

    The state goes into trainer_state.json. A resumed run continues at the batch after the last one
    trained on, in the same epoch's order, without reading what was trained on already: Trainer's own
    skipping is switched off (`ignore_data_skip`), which would do the same a second time.

    Attributes:
        loader_state: `state_dict()` of the training loader, or None before there is one.
    """

    def __init__(self) -> None:
        self.loader_state: dict[str, Any] | None = None
        self._loader: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Leave the skipping to the loader."""
        del state, control, more
        args.ignore_data_skip = True

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **more: Any
    ) -> None:
        """Put the loader where the checkpoint's run was.

        Raises:
            StateError: the checkpoint has no state of a loader, or one that does not fit.
        """
        del control, more
        args.ignore_data_skip = True
        self._loader = train_dataloader
        if not callable(getattr(train_dataloader, "load_state_dict", None)):
            raise StateError(
                f"the training loader is a {type(train_dataloader).__name__}, which has no state",
                do="return a pipeline.torch.DataLoader from get_train_dataloader",
            )
        if state.global_step == 0:
            return
        kept = (state.stateful_callbacks or {}).get(_NAME)
        saved = kept and kept.get("attributes", {}).get("loader_state")
        if not saved:
            raise StateError(
                f"the checkpoint of step {state.global_step} has no state of the training loader",
                do=f"resume from one that was saved with {_NAME}, or from the beginning",
            )
        train_dataloader.load_state_dict(saved)
        _log.info("resumed at epoch %d, offset %d", saved["epoch"], saved["offset"])

    def state(self) -> dict[str, Any]:
        """Return what Trainer writes into trainer_state.json."""
        if self._loader is not None:
            self.loader_state = self._loader.state_dict()
        return {"args": {}, "attributes": {"loader_state": self.loader_state}}
