"""Docstrings are plain text with doctests; this turns them into the Markdown that shows them so."""

import re

import griffe

DOCTEST = re.compile(r"^( *)>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(``.+?``|`.+?`|^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


class PlainText(griffe.Extension):
    """Doctests become code blocks, and nothing in the text is taken for HTML or for a link."""

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        self.on_object(obj=pkg)  # griffe calls the line below for everything inside a package, not for itself

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with fenced doctests and without accidental mark-up.

    >>> as_markdown("|<a, b>| of ``x[0]``")
    '|&lt;a, b>| of ``x[0]``'
    >>> as_markdown(">>> 1 + 1\\n2").splitlines()
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    fenced = DOCTEST.sub(
        lambda found: f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n", text + "\n"
    )
    pieces = CODE.split(fenced)
    pieces[::2] = [piece.replace("<", "&lt;").replace("[", "\\[") for piece in pieces[::2]]
    return "".join(pieces).rstrip()
