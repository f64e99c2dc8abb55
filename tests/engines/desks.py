"""Environments whose tools use each other, and answer other things than text."""

import time
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass
class Point:
    x: int


class Place(BaseModel):
    name: str


class Panic(BaseException):
    """As libraries written in Rust raise it."""


class Store:
    """Tools that use each other, and answer other things than text."""

    def reset(self, **row: Any) -> str | None:
        self.rows = self.names()
        return None

    def names(self) -> list[str]:
        """List."""
        return ["a", "b"]

    def count(self) -> int:
        """Count."""
        return len(self.names()) + 1

    def find(self, key: str) -> str:
        """Find, or raise.

        Args:
            key: Which.
        """
        raise KeyError(key)

    def search(self, key: str) -> str:
        """Find, or say so.

        Args:
            key: Which.
        """
        try:
            return self.find(key)
        except KeyError:
            return "nothing there"

    def echo(self, text: str) -> str:
        """Say it again.

        Args:
            text: What.
        """
        return text

    def stubborn(self) -> str:
        """Swallow whatever stops it, a few times."""
        stopped = 0
        for _ in range(3):
            try:
                time.sleep(5)
            except BaseException:
                stopped += 1
        return f"stopped {stopped} times"

    def panic(self) -> str:
        """Raise what is no ``Exception``."""
        raise Panic("index out of range")

    def silent(self) -> str:
        """Raise without a word."""
        raise ValueError

    def like_an_error(self) -> dict[str, str]:
        """Answer what looks like a failure."""
        return {"error": "no such drawer"}

    def fails(self) -> str:
        """Fail with the same words."""
        raise ValueError("no such drawer")

    def get_reward(self) -> float:
        return float(len(self.names()) + self.count())

    @staticmethod
    def privileged_context() -> str:
        return "of the class"
