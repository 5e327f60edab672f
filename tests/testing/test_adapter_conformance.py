import sys
from pathlib import Path

from osmosis_core.testing import AdapterConformance

sys.path.insert(0, str(Path(__file__).parent / "tiny"))
from tiny_osmosis import TinyAdapter


class TestTiny(AdapterConformance):
    fixtures = TinyAdapter()
