"""A hook of mkdocs: every notebook beside this file becomes a page, with the outputs that were committed with it."""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put NAME.md where NAME.ipynb is."""
    for path in sorted(HERE.glob("*.ipynb")):
        name = path.relative_to(Path(config.docs_dir)).with_suffix(".md").as_posix()
        files.append(File.generated(config, name, content=page(json.loads(path.read_text(encoding="utf-8")))))
    return files


def page(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: texts as they are, code and what it printed in blocks, pictures inside the page."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
        if "image/png" in data:
            parts.append(
                f"![A plot drawn by the code above](data:image/png;base64,{''.join(data['image/png']).strip()})"
            )
        elif "text/markdown" in data:
            parts.append("".join(data["text/markdown"]))
        elif text:
            parts.append(f"```text\n{text}\n```")
    return parts
