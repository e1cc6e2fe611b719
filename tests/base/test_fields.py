"""Knob mechanics, on a family made for the test: all text follows from the fields."""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import pytest

from flashsmith.base.errors import ConfigError
from flashsmith.base.fields import Knobs, flag, knob
from flashsmith.kernels.short_form import parse_identifier, parse_short_form, search_cpp_struct


class Order(IntEnum):
    Static = 0
    Longest = 1


@dataclass(frozen=True, slots=True, order=True)
class Toy(Knobs):
    NAME: ClassVar[str] = "toy"
    CPP_TYPE: ClassVar[str] = "flashsmith::Toy"
    PREFIX: ClassVar[str] = "toy"

    width: int = knob((8, 16), "how wide")
    order: Order = knob(
        (Order.Static, Order.Longest), "which first", "order_{}", absent=Order.Static
    )
    depth: int = knob((1, 2), "how deep", "depth_{}", absent=1)
    fast: bool = flag("fast", "no waiting")


TOYS = [Toy(w, o, d, f) for w in (8, 16) for o in Order for d in (1, 2) for f in (False, True)]


@pytest.mark.parametrize("toy", TOYS, ids=str)
def test_every_text_reads_back(toy):
    assert parse_short_form(toy.short_form(), Toy) == toy
    assert parse_identifier(toy.identifier(), Toy) == toy
    assert search_cpp_struct(f"kernel<{toy.to_cpp_struct()}>", Toy) == toy


def test_absent_values_are_not_written():
    assert Toy(8, Order.Static, 1, False).short_form() == "toy(8)"
    full = Toy(16, Order.Longest, 2, True)
    assert full.short_form() == "toy(16): order_Longest+depth_2+fast"
    assert full.identifier() == "toy_16_order_Longest_depth_2_fast"
    assert full.to_cpp_struct() == (
        "flashsmith::Toy{.width = 16, .order = flashsmith::Order::kLongest, .depth = 2, "
        ".fast = true}"
    )


def test_an_enum_may_be_given_as_its_number_in_a_demangled_name():
    found = search_cpp_struct("Toy{16, (flashsmith::Order)1, (int)2, (bool)0}", Toy)
    assert found == Toy(16, Order.Longest, 2, False)


def test_another_prefix_is_not_this_family():
    with pytest.raises(
        ConfigError, match=r"is not a configuration; a configuration is written 'toy\("
    ):
        parse_short_form("tea(8)", Toy)
