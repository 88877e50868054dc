"""Pages about texts: they speak of texts, and show their words only on request, with the heat that each has."""

import dataclasses
import html
import json
import re

import numpy as np

import giveaway as ga
from tests.scores.test_texts import texts_of

WORDS = ["", " the", " cat", " sat", "Kow", "alski", " 12", "-", "<b>"]


def texts_table(**options):
    texts = texts_of([12, 30, 25, 14, 40, 9, 22, 18, 31, 27, 16, 20], vocabulary=9)
    best = np.zeros(len(texts.tokens), dtype=bool)
    best[texts.starts[4] : texts.starts[5]] = True
    texts = dataclasses.replace(texts, best=best, base_best=~best, words=WORDS, continued=(8, 8), **options)
    return ga.audit(texts)


def test_a_page_of_texts_speaks_of_texts_and_shows_words_only_on_request(tmp_path):
    ga.report(texts_table(), tmp_path / "plain")
    ga.report(texts_table(), tmp_path / "shown", show_records=True)
    hidden = [path.read_bytes() for path in (tmp_path / "plain").iterdir() if path.is_file()]
    hidden += [(tmp_path / "shown" / name).read_bytes() for name in ("summary.html", "summary.json", "scores.csv")]
    assert not any(b"alski" in content or b"<mark" in content for content in hidden)
    page = (tmp_path / "shown" / "report.html").read_text()
    assert re.search(r'<mark class="h[123]">[^<]*(alski|Kow)', page)
    assert "&lt;b&gt;" in page
    assert "<b>" not in page[page.index('<table id="listing"') : page.index("</table>")]
    for name in ("plain/report.html", "shown/report.html", "plain/summary.html"):
        unread = r"<(style|script).*?</\1>|<details id=\"provenance.*?</details>|<[^>]*>"
        words = html.unescape(re.sub(unread, " ", (tmp_path / name).read_text(), flags=re.DOTALL))
        assert not re.findall(r".{30}\b(?:records?|features?|classifier|labels?)\b.{30}", words)
    given_back = "the model gives back the next 8 word for word for 1 of 9 texts of 16 tokens or more (measured)"
    assert given_back in page
    assert "None of them did so before fine-tuning" in page
    summary = json.loads((tmp_path / "plain" / "summary.json").read_text())
    assert "for fewer than 10 of fewer than 10 texts" in summary["statement"]


def test_a_page_of_people_who_wrote_texts(tmp_path):
    ga.report(texts_table(groups=[0, 1, 2, 3] * 3), tmp_path / "people", show_records=True)
    page = (tmp_path / "people" / "report.html").read_text()
    assert "trained on 12 texts of 4 people" in page
    assert "of their" in page
    assert "<mark" in page
