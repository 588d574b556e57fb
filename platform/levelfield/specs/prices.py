"""What a user pays for machines, in one currency: the file of `--prices`. Levelfield ships no price."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value

_MAX_YEARS, _MAX_PUE = 30, 5  # above them a file has months, or per cent


class OwnedUnit(Value):
    """A device or a node that was bought."""

    capital: float = Field(gt=0)  # its price
    years: float = Field(gt=0, le=_MAX_YEARS)  # how long it is used
    utilisation: float = Field(gt=0, le=1)  # for which part of them
    power_per_kwh: float = Field(ge=0)  # the price of a kilowatt-hour
    pue: float = Field(ge=1, le=_MAX_PUE)  # power of the whole site over that of its computers


class ChipPrice(Value):
    """The price of a device, or of a whole node with the devices that a run leaves idle. rent: of an hour.

    A rent includes power. What is owned has its capital and its power.
    """

    per: Literal["device", "node"]
    rent: float | None = Field(default=None, gt=0)
    own: OwnedUnit | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_no_currency(cls, price: Any) -> Any:
        if isinstance(price, dict) and "currency" in price:
            raise ValueError(
                f"found a currency of its own, {price['currency']!r}; expected the one of the file: convert this price"
            )
        return price

    @model_validator(mode="after")
    def _is_rented_or_owned(self) -> ChipPrice:
        if (self.rent is None) == (self.own is None):
            word = "neither" if self.rent is None else "both"
            raise ValueError(f"found {word} of rent and own, expected one of them")
        return self


class Prices(Document):
    """Prices by chip, under the name that `show chips` prints."""

    KIND: ClassVar[str] = "prices"

    currency: str = Field(pattern=r"^[A-Za-z]{2,12}$")  # a word for it, such as EUR
    chips: dict[str, ChipPrice] = Field(min_length=1)
