"""Predictions of latency beside what came: of the requests that were predicted to keep their SLO,
how many did."""

from msgspec import Struct, field

from tandem.facts.slo import Slo


class KeptAndMissed(Struct):
    """Requests with a bound on one latency, or on both: `keep_missed` were predicted to keep it and
    missed it, and so on."""

    keep_kept: int = 0
    keep_missed: int = 0
    miss_kept: int = 0
    miss_missed: int = 0

    @property
    def predicted_to_keep(self) -> int:
        return self.keep_kept + self.keep_missed

    @property
    def predicted_to_miss(self) -> int:
        return self.miss_kept + self.miss_missed

    @property
    def requests(self) -> int:
        return self.predicted_to_keep + self.predicted_to_miss

    def count(self, predicted: bool, kept: bool) -> None:
        """One request more."""
        if predicted:
            self.keep_kept += kept
            self.keep_missed += not kept
        else:
            self.miss_kept += kept
            self.miss_missed += not kept

    def add(self, other: "KeptAndMissed") -> None:
        self.keep_kept += other.keep_kept
        self.keep_missed += other.keep_missed
        self.miss_kept += other.miss_kept
        self.miss_missed += other.miss_missed


class Ratios(Struct):
    """Measured over predicted, as logarithms of base 2: of so many requests the sum."""

    requests: int = 0
    log2_sum: float = 0.0

    @property
    def mean(self) -> float | None:
        """Their geometric mean: 2 and 1/2 cancel out."""
        return 2.0 ** (self.log2_sum / self.requests) if self.requests else None

    def add(self, other: "Ratios") -> None:
        self.requests += other.requests
        self.log2_sum += other.log2_sum


class Calibration(Struct):
    """Of requests that ended: each bound of their SLO, and all bounds together. Requests without an
    SLO count to the ratios alone."""

    ttft: KeptAndMissed = field(default_factory=KeptAndMissed)
    tpot: KeptAndMissed = field(default_factory=KeptAndMissed)
    both: KeptAndMissed = field(default_factory=KeptAndMissed)
    ttft_ratios: Ratios = field(default_factory=Ratios)
    tpot_ratios: Ratios = field(default_factory=Ratios)

    @property
    def empty(self) -> bool:
        return not (self.both.requests or self.ttft_ratios.requests)

    def count(
        self,
        slo: Slo,
        predicted: tuple[float, float],
        ttft_s: float | None,
        tpot_s: float | None,
    ) -> None:
        """A request that was `predicted` so many seconds of TTFT and TPOT, and got these (None: it
        had none; a failed one had neither, and missed its SLO)."""
        failed = ttft_s is None
        promises, answers = [], []
        for bound_s, predicted_s, measured_s, counted in (
            (slo.ttft_s, predicted[0], ttft_s, self.ttft),
            (slo.tpot_s, predicted[1], tpot_s, self.tpot),
        ):
            if bound_s is None or (measured_s is None and not failed):
                continue
            promises.append(predicted_s <= bound_s)
            answers.append(measured_s is not None and measured_s <= bound_s)
            counted.count(promises[-1], answers[-1])
        if promises:
            self.both.count(all(promises), all(answers))

    def add(self, other: "Calibration") -> None:
        self.ttft.add(other.ttft)
        self.tpot.add(other.tpot)
        self.both.add(other.both)
        self.ttft_ratios.add(other.ttft_ratios)
        self.tpot_ratios.add(other.tpot_ratios)

    def __str__(self) -> str:
        """In a sentence; empty where nothing ended."""
        said = []
        if self.both.requests:
            kept, missed = self.both.predicted_to_keep, self.both.predicted_to_miss
            said.append(
                f"of {kept:,} requests predicted to keep their SLO {self.both.keep_kept:,} did"
                + f" ({self.both.keep_kept / kept:.1%})" * bool(kept)
                if kept
                else "no request was predicted to keep its SLO"
            )
            if missed:
                said.append(f"of {missed:,} predicted to miss it {self.both.miss_missed:,} did")
        ratios = [
            f"{name} {mean:.2f}x"
            for name, mean in (("TTFT", self.ttft_ratios.mean), ("TPOT", self.tpot_ratios.mean))
            if mean is not None
        ]
        if ratios:
            said.append(f"measured {' and '.join(ratios)} of what was predicted")
        return "; ".join(said)
