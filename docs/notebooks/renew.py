"""Run the notebooks beside this file, each in an empty folder, and keep what they show.

python docs/notebooks/renew.py
"""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook as it comes out when it is run from the top; a cell that raises is an error."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=300, resources=resources, record_timing=False, coalesce_streams=True)
    return client.execute()


if __name__ == "__main__":
    for found in sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as work:
            done = run(found, Path(work))
        nbformat.write(done, found)
