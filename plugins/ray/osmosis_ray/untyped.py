"""Ray and its pickler, whose annotations are too incomplete for a strict checker."""

from typing import Any

import ray as _ray
from ray import cloudpickle as _cloudpickle

ray: Any = _ray
cloudpickle: Any = _cloudpickle
