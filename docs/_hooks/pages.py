"""Pages of the site whose text stands elsewhere: README, changelog, examples, decisions, command line.

No copy of them is in the repository: each is made when the site is built. Links are written for the repository
(`docs/data.md`, `../examples/chain.yaml`), so that they work there, and are turned here to the page of the site.
"""

import base64
import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "results/README.md": "results/tables.md",
    "tests/equations.md": "equations.md",
}
"""Documents outside docs/ by the page that shows them."""
LAST = ("decisions/", "equations", "reference/gear_rl")
"""What a search shows last."""
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".ipynb": "python"}
FENCED = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
REMOTE = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon))[^>]*\bhref=["']?(?:https?:)?//"""
)
"""What a browser would load from another machine."""


def on_config(config):
    """Give the folders of the navigation the pages that they have."""
    lists = {"decisions/": decisions, "examples/": examples}
    config.nav = [_with_folders(entry, lists) for entry in config.nav]
    return config


def on_files(files, config):
    """Add the pages that have no file under docs/."""
    made = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in MOVED.items()}
    made["index.md"] = f"---\nhide: [navigation]\n---\n{made['index.md']}"
    made["decisions/index.md"] = "# Decisions\n\nWhat was decided, and why.\n\n" + "".join(
        f"- [{_title(path)}]({path.name})\n" for path in sorted((DOCS / "decisions").glob("*.md"))
    )
    for page in examples():
        path = ROOT / page.removesuffix(".md")
        text, language = path.read_text(encoding="utf-8"), LANGUAGES[path.suffix]
        made[page] = (
            notebook(text) if path.suffix == ".ipynb" else f"# {path.name}\n\n```{language}\n{text}```\n"
        )
    made["reference/command-line.md"] = command_line()
    made["reference/methods.md"] = settings_of_methods()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links between files of the repository into links between pages."""
    if page.file.src_uri.startswith(LAST):
        page.meta["search"] = {"boost": 0.1}
    if page.file.src_uri.startswith("reference/"):
        return markdown
    outside = {shown: name for name, shown in MOVED.items()}
    here = outside.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def turned(link):
        target, anchor = link[1], link[2] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        wanted = _page_of(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))
        return f"]({posixpath.relpath(wanted, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    pieces = FENCED.split(markdown)
    pieces[::2] = [LINK.sub(turned, piece) for piece in pieces[::2]]
    return "".join(pieces)


def on_post_page(output, page, config):
    """Refuse a page that would load something from another machine."""
    if remote := REMOTE.search(output):
        raise PluginError(f"{page.file.src_uri} is not readable offline: {remote[0]} ...")
    return output


def notebook(text: str) -> str:
    """A notebook as a page: its text, its code, and the pictures and values under each cell."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/svg+xml" in data:
                drawn = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
                parts.append(f"![What the cell shows](data:image/svg+xml;base64,{drawn})")
            else:
                parts.append(f"```text\n{''.join(data.get('text/plain') or output['text']).strip()}\n```")
    return "\n\n".join(parts)


def command_line() -> str:
    """The help of every command, as Typer writes it down."""
    words = [sys.executable, "-m", "typer", "gear_rl.cli.app", "utils", "docs", "--name", "gear"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PluginError(f"the help of the commands could not be read: {done.stderr}")
    text = done.stdout.replace("# `gear`", "# The command line", 1)
    # In its list of commands Typer cuts their first lines short.
    for name, line in re.findall(r"^## `gear (\w+)`\n\n(.*?)$", text, re.MULTILINE):
        text = re.sub(
            rf"^\* `{name}`: .*", f"* [`{name}`](#gear-{name}): {line}", text, count=1, flags=re.MULTILINE
        )
    return text


def settings_of_methods() -> str:
    """Every method's settings, in a process that may import the package."""
    code = "from benchmarks.methods_page import settings_page; print(settings_page())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise PluginError(f"the methods' settings could not be read: {done.stderr}")
    return done.stdout


def decisions() -> list[dict[str, str]]:
    """The decisions by their titles."""
    paths = sorted((DOCS / "decisions").glob("*.md"))
    return ["decisions/index.md", *({_title(path): f"decisions/{path.name}"} for path in paths)]


def examples() -> list[str]:
    """The pages of the files in examples/."""
    return [
        f"{path.relative_to(ROOT).as_posix()}.md"
        for path in sorted((ROOT / "examples").rglob("*"))
        if path.suffix in LANGUAGES
    ]


def _page_of(path: str) -> str:
    """The page that shows a file or folder of the repository; the path as it is if none does."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("examples/"):
        return f"{path}.md"
    if path.startswith("src/gear_rl"):
        page = "reference/" + path.removeprefix("src/").removesuffix(".py")
        return f"{page}/index.md" if (ROOT / path).is_dir() else f"{page}.md"
    inside = path.removeprefix("docs/")
    if not (ROOT / path).is_dir():
        return inside
    return f"{inside}/{'README' if (ROOT / path / 'README.md').exists() else 'index'}.md"


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def _with_folders(entry, lists):
    if not isinstance(entry, dict):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: [_with_folders(inner, lists) for inner in value]}
    return {title: lists[value]()} if value in lists else entry
