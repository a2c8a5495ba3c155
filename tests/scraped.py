"""One scrape, parsed: what tests of several floors ask of the metrics."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from pgsched.ops.collector import DirectoryCollector
from pgsched.ops.exposition import Exposition


class Scraped:
    """The series of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.complaints: list[str] = []
        """Names of files and metrics that had to be left out."""
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}

    @classmethod
    def from_directory(cls, directory: Path) -> "Scraped":
        """What a supervisor would serve from its metrics directory."""
        complaints: list[str] = []

        def report(name: str, reason: str) -> None:
            complaints.append(name)

        scraped = cls(Exposition(DirectoryCollector(directory, report), report).render().decode())
        scraped.complaints = complaints
        return scraped

    def value(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def total(self, name: str, **labels: str) -> float:
        """The sum over all other labels."""
        return sum(
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
