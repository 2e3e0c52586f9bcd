"""One file that says everything about a run: data, rules, promises, plan, model, training, audit and output.

sections (what each part may say) -> config (the whole file, read and checked); templates: files to begin with.
"""

from hush.config.config import Config, load_config
from hush.config.templates import template

__all__ = ["Config", "load_config", "template"]
