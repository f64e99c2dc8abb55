"""Docstrings are plain text with doctests; this turns them into the Markdown that shows them so."""

import ast
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

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs) -> None:
        """A field that is made by ``_setting(default, help)`` shows its default and its help."""
        if str(attr.value).startswith("_setting("):
            attr.value, text = _default_and_help(attr.value)
            attr.docstring = griffe.Docstring(as_markdown(text), parent=attr)

    def on_function(self, *, func: griffe.Function, **kwargs) -> None:
        """So does the parameter of the same name."""
        for parameter in func.parameters:
            if str(parameter.default).startswith("_setting("):
                parameter.default, _ = _default_and_help(parameter.default)


def _default_and_help(call: griffe.Expr | str) -> tuple[str, str]:
    default, text = ast.parse(str(call), mode="eval").body.args
    return ast.unparse(default), ast.literal_eval(text)


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
