"""The two faces under test; native tests are skipped where no compiler can be found."""

from collections.abc import Iterator

import pytest
import torch

from tandem.kernels.faces import Kernels, native_kernels, reference_kernels
from tandem.kernels.linear import has_bf16_products, has_int8_products
from tandem.kernels.native import BuildFailure, NativeLibrary, load_library


@pytest.fixture(scope="session")
def library() -> NativeLibrary:
    loaded = load_library()
    if isinstance(loaded, BuildFailure):
        pytest.skip(loaded.reason)
    return loaded


@pytest.fixture(scope="session")
def native(library: NativeLibrary) -> Kernels:
    return native_kernels(library)


@pytest.fixture(scope="session")
def narrow(library: NativeLibrary) -> Kernels:
    """With products in fewer bits, where the processor has them."""
    return native_kernels(library, narrow=True)


@pytest.fixture(scope="session")
def bf16_products(library: NativeLibrary) -> None:
    if not has_bf16_products(library):
        pytest.skip("this processor does not multiply in bfloat16")


@pytest.fixture
def int8_products(library: NativeLibrary) -> None:
    if not has_int8_products(library):
        pytest.skip("this processor does not multiply bytes")


@pytest.fixture(scope="session")
def reference() -> Kernels:
    return reference_kernels()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny shapes need no second thread; the thread laws ask for one themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads(one_thread: None) -> None:
    torch.set_num_threads(2)
