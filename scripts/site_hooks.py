"""Hooks of mkdocs: add pages from outside docs/, and check the built pages.

The site is laid out like the repository, with docs/ put over its root: a link from a page to a
file of the repository leads to the same place on the site.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    *("ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md", "tests/clients/README.md"),
    *("cpp/src/*/README.md", "cuda/README.md"),
    *("python/specdec_serve/README.md", "python/specdec_lab/training/README.md"),
    *("bench/README.md", "bench/results/*.md", "bench/results/cpu/*/README.md"),
    "bench/results/arm64/README.md",
    *("bench/results/cpu/*/*.png", "bench/results/cpu/*/*.svg"),
    *("examples/serving/*", "examples/python/*.py", "examples/c/*.py"),
)
# A script, a style sheet, a font or an image that a browser would load from another server.
_LOADED_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon))"
    r"[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>"
)

_logger = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the files of OUTSIDE under their paths in the repository."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrites links between docs/ and the rest of the repository for the site."""
    if page.file.generated_by is None:
        return re.sub(r"(\]\(|\]: )\.\./", r"\1", markdown)
    return re.sub(r"(\]\(|\]: )((?:\.\./)*)docs/", r"\1\2", markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Warns, which fails a strict build, where a page would load something from elsewhere."""
    for tag in _LOADED_ELSEWHERE.findall(output):
        _logger.warning("%s loads from another server: %s", page.file.src_uri, tag)
    return output
