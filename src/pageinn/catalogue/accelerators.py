"""Accelerators as their vendors' datasheets have them.

Memory is in binary units: a card that a datasheet calls "80GB" reports some 80 GiB (H100: 81,559 MiB). FLOP/s are
dense: where a datasheet gives the figure with structured sparsity, half of it. Tensor-core figures are those with
float32 accumulation. Links are one way: half of what a datasheet calls bidirectional. All are peaks, which no program
reaches; whoever plans multiplies them by the share that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pageinn.catalogue.errors import known

GIB = 2**30
PCIE3, PCIE4, PCIE5 = 16e9, 32e9, 64e9
"""16 lanes of PCI Express, bytes per second one way, before the encoding's few per cent."""


@dataclass(frozen=True)
class Accelerator:
    """One card.

    memory: bytes. bandwidth: of that memory, bytes per second. flops: dense FLOP/s by what is multiplied ("half" is
    bfloat16, or float16 on cards that lack it). link: to the host's memory, bytes per second one way. source: the
    datasheet, or the assumption.
    """

    name: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    link: float
    link_name: str
    source: str

    def rate(self, compute: str) -> float:
        """FLOP/s in a dtype; what the card cannot multiply as such is multiplied in the next wider one it can."""
        for dtype in (compute, "half", "float32"):
            if dtype in self.flops:
                return self.flops[dtype]
        raise ValueError(f"{self.name} has no rate for {compute}")


def _card(
    name: str,
    gib: int,
    gigabytes_per_second: float,
    link: float,
    link_name: str,
    source: str,
    **teraflops: float,
) -> Accelerator:
    flops = {dtype: rate * 1e12 for dtype, rate in teraflops.items()}
    return Accelerator(name, gib * GIB, gigabytes_per_second * 1e9, flops, link, link_name, source)


_NVIDIA = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_A100 = f"{_NVIDIA}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_H100 = "https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306"
_P3, _P4, _P5 = (PCIE3, "PCIe 3.0 x16"), (PCIE4, "PCIe 4.0 x16"), (PCIE5, "PCIe 5.0 x16")

ACCELERATORS: dict[str, Accelerator] = {
    card.name: card
    for card in (
        _card("t4", 16, 320, *_P3, f"{_NVIDIA}/tesla-t4/t4-tensor-core-datasheet-951643.pdf", half=65, int8=130),
        _card(
            "v100-32gb",
            32,
            900,
            *_P3,
            "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
            half=125,
        ),
        _card("a10", 24, 600, *_P4, f"{_NVIDIA}/a10/pdf/a10-datasheet.pdf", half=125, int8=250),
        _card("a30", 24, 933, *_P4, f"{_NVIDIA}/products/a30-gpu/pdf/a30-datasheet.pdf", half=165, int8=330),
        _card("a40", 48, 696, *_P4, f"{_NVIDIA}/a40/nvidia-a40-datasheet.pdf", half=149.7, int8=299.3),
        _card("a100-40gb", 40, 1555, *_P4, _A100, half=312, int8=624),
        _card("a100-80gb-pcie", 80, 1935, *_P4, _A100, half=312, int8=624),
        _card("a100-80gb", 80, 2039, *_P4, _A100, half=312, int8=624),
        _card("l4", 24, 300, *_P4, "https://www.nvidia.com/en-us/data-center/l4/", half=121, fp8=242.5, int8=242.5),
        _card("l40s", 48, 864, *_P4, "https://www.nvidia.com/en-us/data-center/l40s/", half=362.05, fp8=733, int8=733),
        _card(
            "rtx-3090",
            24,
            936,
            *_P4,
            "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
            half=71,
            int8=284,
        ),
        _card(
            "rtx-4090",
            24,
            1008,
            *_P4,
            "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
            half=165.2,
            fp8=330.3,
            int8=660.6,
        ),
        _card(
            "rtx-5090",
            32,
            1792,
            *_P5,
            "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
            half=209.5,
            fp8=419,
            int8=838,
        ),
        _card("h100-pcie", 80, 2000, *_P5, _H100, half=756, fp8=1513, int8=1513),
        _card("h100", 80, 3350, *_P5, _H100, half=989, fp8=1979, int8=1979),
        _card("h100-nvl", 94, 3900, *_P5, _H100, half=835, fp8=1671, int8=1671),
        _card("h200", 141, 4800, *_P5, "https://www.nvidia.com/en-us/data-center/h200/", half=989, fp8=1979, int8=1979),
        _card(
            "gh200",
            96,
            4000,
            450e9,
            "NVLink-C2C",
            "https://resources.nvidia.com/en-us-grace-cpu/grace-hopper-superchip",
            half=990,
            fp8=1979,
            int8=1979,
        ),
        _card(
            "b200",
            180,
            8000,
            *_P5,
            "https://resources.nvidia.com/en-us-dgx-systems/dgx-b200-datasheet",
            half=2250,
            fp8=4500,
            int8=4500,
        ),
        _card(
            "mi300x",
            192,
            5300,
            *_P5,
            "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/"
            "amd-instinct-mi300x-data-sheet.pdf",
            half=1307.4,
            fp8=2614.9,
            int8=2614.9,
        ),
        _card(
            "mi325x",
            256,
            6000,
            *_P5,
            "https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html",
            half=1307.4,
            fp8=2614.9,
            int8=2614.9,
        ),
        _card(
            "mi355x",
            288,
            8000,
            *_P5,
            "https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html",
            half=2516.6,
            fp8=5033.2,
            int8=5033.2,
        ),
        Accelerator(
            "cpu-2core",
            8 * GIB,
            20e9,
            {"float32": 192e9, "int8": 384e9},
            10e9,
            "memory to memory",
            "assumed, not a product: 2 cores at 3 GHz with AVX2 (two 8-wide float32 multiply-adds, or one 32-wide int8 "
            "one, per core and cycle), 20 GB/s of memory shared with neighbours, 8 GiB; a copy reads and writes",
        ),
    )
}


def find_accelerator(name: str) -> Accelerator:
    """A card of the catalogue. Raises CatalogueError, with the names that are known, for another name."""
    if name.lower() not in ACCELERATORS:
        raise known("accelerator", name, list(ACCELERATORS))
    return ACCELERATORS[name.lower()]
