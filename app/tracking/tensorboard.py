"""Numbers for TensorBoard: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Mapping

from corsage.app.tracking.tracker import Numbers, Part, Tracker, group_of
from corsage.core.errors import ConfigError
from corsage.core.files import delete


class TensorBoard(Tracker):
    """Writes TensorBoard's files; those of a run that is resumed are made anew from its rounds."""

    name = "tensorboard"

    def begin(self, part: Part) -> int:
        """A writer, and the keys as hyperparameters beside the curve of the first measure."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        if part.folder is None:
            raise ConfigError("say into which folder: TensorBoard(FOLDER).")
        folder = part.folder / "tensorboard"
        delete(*folder.glob("events.out.tfevents.*"))  # of this strategy alone
        self.strategy, self.writer = part.strategy, SummaryWriter(str(folder))
        for record in hparams(dict(part.keys), {f"{part.measures[0]}/mean": 0.0}):
            self.writer.file_writer.add_summary(record)
        return 0

    def log(self, number: int, values: Numbers) -> None:
        """A point of each curve, at once on the disk."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, number)
        self.writer.flush()

    def finish(self, number: int, rows: Mapping[str, Numbers]) -> None:
        """A point of each number of each row."""
        for row, values in rows.items():
            group = group_of(row, self.strategy)
            self.log(number, {f"{group}/{name}": value for name, value in values.items()})
        self.writer.close()
