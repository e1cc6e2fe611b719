"""The devices tests run on: the emulator always, CUDA where there is a GPU."""

import pytest

from flashsmith.runtime.devices import default_device, has_cuda, open_device

DEVICES = ["emulator"]
if has_cuda():
    DEVICES.append(pytest.param("cuda", marks=pytest.mark.gpu))


@pytest.fixture(params=DEVICES)
def device(request):
    """A device; the same test body holds on both."""
    return open_device("emulator") if request.param == "emulator" else default_device("cuda")
