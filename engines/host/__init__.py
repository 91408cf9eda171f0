"""What a machine has, and what engines need of it."""

from trtspec.engines.host.facts import FoundGpu, HostFacts, read_host_facts
from trtspec.engines.host.needs import FP8_MIN_SM, gpu_problem, min_sm
from trtspec.engines.host.probe import Probe

__all__ = ["FP8_MIN_SM", "FoundGpu", "HostFacts", "Probe", "gpu_problem", "min_sm", "read_host_facts"]
