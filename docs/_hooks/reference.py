"""The API reference: a page for every module of the package, found by walking the tree.

A module that is added or moved needs no line here. Names with an underscore are left out, and so is the command
line, whose page is made from its help.
"""

import ast
import re
from pathlib import Path

import griffe
from docstrings import as_markdown
from mkdocs.structure.files import File

SOURCE = Path(__file__).parents[2] / "src"
LEFT_OUT = {"cli"}
SETTINGS = "reference/settings.md"
GROUPS = {
    "The teacher": r"teacher_",
    "What the teacher sees": r"privileged_|max_privileged|success_reward",
    "Signals and their cost": r"answer_pattern|credit_batch_size",
    "Records": r"record_",
    "Tools": r"tool_",
    "Evaluation, folders, failures": r"",
}
"""Headings of the page of settings, and how the names under each begin; the first that fits counts."""


def on_config(config):
    """Put the tree in the place of ``reference/`` in the navigation."""
    package = _package()
    for entry in config.nav:
        for title, value in entry.items():
            if isinstance(value, list):
                entry[title] = [_with_tree(inner, package) for inner in value]
    return config


def on_files(files, config):
    """Add the page of every module."""
    for module in _walk(_package()):
        files.append(File.generated(config, _page(module), content=_text(module)))
    files.append(File.generated(config, SETTINGS, content=_settings()))
    return files


def _settings() -> str:
    """Every setting that ``GEARConfig`` has beside TRL's, in groups."""
    package = _package()
    classes = [package["credit.credit_config.CreditConfig"], package["engines.trl.config.GEARConfig"]]
    fields = {name: one for cls in classes for name, one in cls.attributes.items()}
    rows: dict[str, str] = dict.fromkeys(GROUPS, "")
    for name, field in fields.items():
        if str(field.value).startswith("_setting("):
            default, text = map(ast.unparse, ast.parse(str(field.value), mode="eval").body.args)
            group = next(group for group, begins in GROUPS.items() if re.match(begins, name))
            meaning = as_markdown(ast.literal_eval(text)).replace("|", "\\|")
            rows[group] += f"| `{name}` | `{default}` | {meaning} |\n"
    tables = [f"## {group}\n\n| setting | default | |\n|---|---|---|\n{text}" for group, text in rows.items()]
    about = (
        "Keys of a run's file, flags of `gear train` and arguments of `GEARConfig`. Every setting of TRL's "
        "`GRPOConfig` is one too, and a method has [its own](../methods.md)."
    )
    return "\n\n".join(["# Settings", about, *tables])


def _package() -> griffe.Module:
    return griffe.load("gear_rl", search_paths=[str(SOURCE)], allow_inspection=False)


def _inner(module: griffe.Module) -> list[griffe.Module]:
    """The modules inside, packages first."""
    inner = [
        child
        for name, child in module.modules.items()
        if not child.is_alias and not name.startswith("_") and name not in LEFT_OUT
    ]
    return sorted(inner, key=lambda child: (not child.is_init_module, child.name))


def _walk(module: griffe.Module):
    yield module
    for child in _inner(module):
        yield from _walk(child)


def _page(module: griffe.Module) -> str:
    path = "reference/" + module.path.replace(".", "/")
    return f"{path}/index.md" if module.is_init_module else f"{path}.md"


def _nav(module: griffe.Module):
    if not module.is_init_module:
        return {module.name: _page(module)}
    return {module.name: [_page(module), *(_nav(child) for child in _inner(module))]}


def _with_tree(entry, package):
    if isinstance(entry, dict) and "reference/" in entry.values():
        return {title: _nav(package)[package.name] for title in entry}
    return entry


def _first_line(thing: griffe.Object | griffe.Alias) -> str:
    text = thing.docstring.value if thing.docstring else ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|").replace("``", "`")


def _text(module: griffe.Module) -> str:
    """The docstring, a table of what the package hands on and of its modules, and the definitions."""
    parts = [f"# `{module.path}`"]
    body = f"::: {module.path}\n"
    if module.is_init_module:  # what it only hands on has its page elsewhere
        own = [
            name
            for name, thing in module.members.items()
            if not (thing.is_alias or thing.is_module or name.startswith("_")) and thing.docstring
        ]
        body += f"    options:\n      members: {own or 'false'}\n"
    parts.append(body)
    source = module.filepath.read_text(encoding="utf-8")
    handed_on = [
        str(name) for name in module.exports or re.findall(r"import (\w+) as \1$", source, re.MULTILINE)
    ]
    passed_on = [name for name in handed_on if name in module.members and module.members[name].is_alias]
    if passed_on:
        parts.append("## Names\n\n| name | |\n|---|---|\n" + "".join(map(_row, _targets(module, passed_on))))
    if inner := _inner(module):
        rows = "".join(
            f"| [`{child.name}`]({child.name}{'/index' if child.is_init_module else ''}.md)"
            f" | {_first_line(child)} |\n"
            for child in inner
        )
        parts.append("## Modules\n\n| module | |\n|---|---|\n" + rows)
    return "\n\n".join(parts)


def _targets(module: griffe.Module, names: list[str]):
    for name in names:
        yield name, module.members[name].final_target


def _row(named) -> str:
    name, target = named
    return f"| [`{name}`][{target.path}] | {_first_line(target)} |\n"
