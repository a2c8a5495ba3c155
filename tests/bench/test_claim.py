"""The statements that ours is compared with are the article's, and claim what they say."""

import psycopg
import pytest

from benchmarks.claim import FILL, NAMESPACE
from benchmarks.clients import Client, repeat, statement
from benchmarks.server import Server
from tests.article import text


@pytest.mark.parametrize(("ours", "theirs"), [("article_table", "snippet_1"), ("claim_article", "snippet_5_claim")])
def test_the_article_is_quoted_to_the_letter(ours: str, theirs: str) -> None:
    assert statement(ours).decode() == text(theirs)


@pytest.mark.parametrize(
    ("name", "parameters", "batch"),
    [
        ("claim_naive", (3,), 3),
        ("claim_skip_locked", (3,), 3),
        ("claim_article", (NAMESPACE,), 1),
        ("claim_article_batch", (NAMESPACE, 3), 3),
    ],
)
def test_a_variant_claims_the_oldest_of_its_batch(
    empty_dsn: str, name: str, parameters: tuple[int, ...], batch: int
) -> None:
    with Server(empty_dsn).fresh(empty=True) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement("article_table"))
        connection.execute(FILL, [20])
        client = Client(dsn, statement(name))
        try:
            first, second = client.run(*parameters), client.run(*parameters)
        finally:
            client.close()
        assert first is not None
        assert second is not None
        ids = {int(result.get_value(row, 0) or 0) for result in (first, second) for row in range(result.ntuples)}
        assert ids == set(range(1, 2 * batch + 1))


def test_callers_stop_when_all_rows_are_had() -> None:
    repeated = repeat([lambda: 2, lambda: 3], seconds=60, rows=100)
    assert 100 <= repeated.rows <= 104
    assert 34 <= len(repeated.times) <= 51


def test_a_client_says_what_is_wrong(empty_dsn: str) -> None:
    with pytest.raises(RuntimeError, match="syntax error"):
        Client(empty_dsn, b"SELEKT 1")
