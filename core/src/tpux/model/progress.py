"""How far a program has come, as plugins read it from its output."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tpux.model.json import JsonValue, dump_fields


@dataclass(frozen=True)
class Progress:
    """How far the program of an attempt has come, as far as its output says.

    Attributes:
        step: the last step; None if the output names none.
        epoch: the last epoch.
        loss: the last loss, as it was written, such as `0.31` or `nan`; "" if there is none.
        compiling: whether its output says that it is compiling, after any step, epoch, loss or end of a compilation.
        rate: steps per second lately, which core measures; None if unknown.
        first_step: the first step; None if the output names none.
        total: the number of steps that the program is to take; None if the output does not say it.
        url: where the run can be seen, such as that of Weights & Biases; "" if the output names none.
    """

    step: int | None = None
    epoch: int | None = None
    loss: str = ""
    compiling: bool = False
    rate: float | None = None
    first_step: int | None = None
    url: str = ""
    total: int | None = None

    def __bool__(self) -> bool:
        return self != Progress()

    def __str__(self) -> str:
        parts = [
            "compiling" if self.compiling else "",
            self.position,
            "" if self.epoch is None else f"epoch {self.epoch}",
            f"loss {self.loss}" if self.loss else "",
            _describe_rate(self.rate) if self.rate and not self.compiling else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def position(self) -> str:
        """The last step: `step 310`, or `42% 4200/10000` if the total is known; "" if there is none."""
        if self.step is None:
            return ""
        if self.total and self.step <= self.total:
            return f"{100 * self.step // self.total}% {self.step}/{self.total}"
        return f"step {self.step}"

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fields as JSON data."""
        return dump_fields(self)

    def followed_by(self, later: Progress) -> Progress:
        """Return what later output says, with the earlier values that it does not repeat."""
        return replace(
            later,
            step=self.step if later.step is None else later.step,
            epoch=self.epoch if later.epoch is None else later.epoch,
            loss=later.loss or self.loss,
            rate=self.rate if later.rate is None else later.rate,
            first_step=later.first_step if self.first_step is None else self.first_step,
            url=later.url or self.url,
            total=self.total if later.total is None else later.total,
        )


def _describe_rate(rate: float) -> str:
    return f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.1f} s/step"
