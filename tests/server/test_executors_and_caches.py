"""The small parts by themselves: batches, cache, rates, threads, counters."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cachetools import TTLCache
from prometheus_client.parser import text_string_to_metric_families

from polysem.server import Limits, Settings
from polysem.server.errors import ApiError
from polysem.server.executors import AdmissionSlots, Jobs, MicroBatcher, WorkerPool
from polysem.server.metrics import Metrics
from polysem.server.middleware import CLIENTS, TokenBuckets
from polysem.server.routes.overview import strip_paths
from server.running import client, error, picture
from waiting import LONG, finish, wait_for, wait_until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# ------------------------------------------------------------------------------------------------------- batching


def test_what_comes_in_during_a_batch_is_the_next_batch():
    sizes: list[int] = []
    began, first = threading.Event(), threading.Event()

    def encode(given):
        sizes.append(len(given))
        began.set()
        if len(sizes) == 1:
            wait_for(first)
        return [2 * each for each in given]

    async def ask() -> list[int]:
        batcher = MicroBatcher(encode, size=8, most=100, pool=ThreadPoolExecutor(1))
        tasks = [asyncio.create_task(batcher(number)) for number in range(20)]
        await asyncio.to_thread(wait_for, began)
        tasks += [asyncio.create_task(batcher(number)) for number in range(20, 22)]
        first.set()
        try:
            return await asyncio.gather(*tasks)
        finally:
            batcher.close()

    assert asyncio.run(ask()) == [2 * number for number in range(22)]
    assert sizes == [8, 8, 6]


def test_one_alone_does_not_wait():
    async def ask() -> int:
        batcher = MicroBatcher(list, size=32, most=10, pool=ThreadPoolExecutor(1))
        await batcher(0)
        with pytest.MonkeyPatch.context() as patch:

            def timer(*_: object, **__: object) -> None:
                raise AssertionError("it waits for a time")

            for name in ("call_later", "call_at"):
                patch.setattr(asyncio.get_running_loop(), name, timer)
            assert await batcher(1) == 1
        batcher.close()
        return batcher.batches

    assert asyncio.run(ask()) == 2


def test_a_bad_query_fails_alone():
    def encode(given):
        if "bad" in given:
            raise ValueError("bad")
        return [each.upper() for each in given]

    async def ask():
        batcher = MicroBatcher(encode, size=8, most=100, pool=ThreadPoolExecutor(1))
        found = await asyncio.gather(*(batcher(each) for each in ("a", "bad", "b")), return_exceptions=True)
        batcher.close()
        return found

    first, bad, second = asyncio.run(ask())
    assert (first, second) == ("A", "B")
    assert isinstance(bad, ValueError)


def test_a_full_queue_refuses_and_who_gave_up_is_left_out():
    seen: list[int] = []
    began, hold = threading.Event(), threading.Event()

    def encode(given):
        began.set()
        wait_for(hold)
        seen.extend(given)
        return list(given)

    async def ask() -> None:
        batcher = MicroBatcher(encode, size=1, most=2, pool=ThreadPoolExecutor(1))
        running = asyncio.create_task(batcher(0))
        await asyncio.to_thread(wait_for, began)
        waiting = [asyncio.create_task(batcher(number)) for number in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="busy"):
            await batcher(3)
        waiting[0].cancel()
        hold.set()
        assert await running == 0
        assert await waiting[1] == 2
        batcher.close()

    asyncio.run(ask())
    assert seen == [0, 2]


def hits_of(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("polysem_cache_hits_total") or 0.0


def test_queries_go_through_the_encoder_together_and_once(reader):
    encoding = reader.app.state.polysem.encoding
    before = encoding.texts.items
    threads = [
        threading.Thread(target=reader.post, args=("/api/v1/search",), kwargs={"json": {"text": f"words {n % 4}"}})
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics = reader.app.state.polysem.metrics
    hits = hits_of(metrics)
    reader.post("/api/v1/search", json={"text": "words 1"})
    assert hits_of(metrics) == hits + 1
    assert encoding.texts.items - before <= 24
    again = encoding.texts.items
    reader.post("/api/v1/search", json={"text": "words 2"})
    assert encoding.texts.items == again, "a repeated query is not encoded again"


def test_an_embedding_does_not_depend_on_its_batch(model):
    from polysem.server.state import BatchedQueryEncoder

    async def together():
        encoding = BatchedQueryEncoder(model, Limits(), Metrics())
        texts = [f"a {'very ' * n}red picture" for n in range(12)]
        found = await asyncio.gather(*(encoding.encode_text(text) for text in texts))
        encoding.close()
        return texts, found

    texts, found = asyncio.run(together())
    for text, vectors in zip(texts, found, strict=True):
        assert vectors == pytest.approx(model.encode_texts([text])[0].numpy(), abs=1e-5)


# ---------------------------------------------------------------------------------------------- cache and rates


def test_an_upload_is_forgotten_after_its_time_and_when_others_come(place, model):
    clock = Clock()
    with client(place, model, Settings(limits=Limits(rate=0, uploads=2, upload_seconds=10.0))) as made:
        state = made.app.state.polysem
        state.uploads = TTLCache(state.uploads.maxsize, state.uploads.ttl, clock)
        files = [{"file": ("x.png", picture(seed=n), "image/png")} for n in range(3)]
        first, second, third = (made.post("/api/v1/uploads", files=each).json()["image"] for each in files)
        thumbnail = "/api/v1/uploads/{}/thumbnail"
        assert "expired" in error(made.get(thumbnail.format(first)), 404, "not_found")
        assert made.get(thumbnail.format(second)).status_code == 200
        clock.now = 10.1
        assert "expired" in error(made.get(thumbnail.format(third)), 404, "not_found")
        assert len(state.uploads) == 0


def test_buckets_fill_up_again():
    clock = Clock()
    rates = TokenBuckets(2.0, 4.0, clock)
    assert [rates.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert rates.take("b") == 0
    clock.now = 0.5
    assert rates.take("a") == 0
    assert rates.take("a") > 0
    clock.now = 100
    assert [rates.take("a") for _ in range(5)][-1] > 0, "no more than a bucket holds"
    assert rates.take("c", 1000) == 0, "what costs more than a bucket holds needs a full one"


def test_an_ipv6_network_is_one_client_and_clients_are_forgotten():
    rates = TokenBuckets(1.0, 1.0, Clock())
    assert rates.take("2001:db8::1") == 0
    assert rates.take("2001:db8::2") > 0
    assert rates.take("2001:db8:1::1") == 0
    for number in range(CLIENTS + 10):
        rates.take(f"client {number}")
    assert len(rates._buckets) == CLIENTS


# ------------------------------------------------------------------------------------------------ threads and jobs


def test_workers_refuse_what_would_only_wait():
    began, hold = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        wait_for(hold)

    async def ask() -> None:
        workers = WorkerPool(ThreadPoolExecutor(1), 2)
        tasks = [asyncio.create_task(workers.run(work)) for _ in range(2)]
        await asyncio.to_thread(wait_for, began)
        assert workers.busy == 2
        with pytest.raises(ApiError, match="busy"):
            await workers.run(int)
        tasks[0].cancel()
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="busy"):  # who gave up still has the thread
            await workers.run(int)
        hold.set()
        await tasks[1]
        async with asyncio.timeout(LONG):
            while workers.busy:
                await asyncio.sleep(0.001)
        assert await workers.run(lambda: 7) == 7
        workers.close()

    asyncio.run(ask())


def test_few_are_let_in_at_once_some_wait_and_the_rest_are_refused():
    inside: list[int] = []
    most: list[int] = []

    async def enter(few: AdmissionSlots, number: int) -> int:
        async with few.admit():
            inside.append(number)
            most.append(len(inside))
            try:
                await asyncio.sleep(0.01)
            finally:
                inside.remove(number)
        return number

    async def ask():
        few = AdmissionSlots(2, 4)
        found = await asyncio.gather(*(enter(few, number) for number in range(6)), return_exceptions=True)
        gone = asyncio.create_task(enter(few, 7))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        return found, await asyncio.gather(*(enter(few, number) for number in range(4)))

    found, again = asyncio.run(ask())
    assert found[:4] == [0, 1, 2, 3]
    assert all(isinstance(each, ApiError) for each in found[4:])
    assert max(most) == 2
    assert again == [0, 1, 2, 3]


def test_a_job_is_done_once_and_kept():
    jobs, calls = Jobs(), []
    go = threading.Event()

    def work(report):
        calls.append(1)
        report(0.5)
        wait_for(go)
        return "made"

    job = jobs.get("key", work)
    wait_until(lambda: job.progress == 0.5)
    assert not job.ready
    go.set()
    wait_until(lambda: job.ready)
    assert jobs.get("key", work).result == "made"
    assert calls == [1]
    for number in range(20):
        other = jobs.get(number, lambda _: None)
        wait_until(lambda other=other: other.ready)
    assert len(jobs._jobs) <= 8
    jobs.close()


def test_a_job_that_failed_says_so_once_and_is_then_tried_again(caplog):
    jobs = Jobs()

    def broken(_):
        raise RuntimeError("no")

    job = jobs.get("key", broken)
    wait_until(lambda: job.ready)
    told = jobs.get("key", broken)  # who asks every second must learn of it, and not have it done every second
    assert isinstance(told.error, RuntimeError)
    again = jobs.get("key", lambda _: 1)
    assert again is not told
    wait_until(lambda: again.ready)
    assert again.result == 1
    jobs.close()


def test_a_job_outdated_while_it_ran_is_shown_once_and_then_made_anew():
    jobs, go = Jobs(), threading.Event()

    def work(_):
        wait_for(go)
        return "made"

    first = jobs.get("key", work, version=1)
    assert jobs.get("key", work, version=2) is first, "not a second one beside it"
    go.set()
    wait_until(lambda: first.ready)
    assert jobs.get("key", work, version=3).result == "made"
    second = jobs.get("key", work, version=3)
    assert second is not first
    wait_until(lambda: second.ready)
    assert jobs.get("key", work, version=4) is not second, "nobody waited for it"
    jobs.close()


def test_a_job_nobody_will_ask_for_is_given_up(caplog):
    jobs, began = Jobs(), threading.Event()

    def endless(report):
        while True:
            began.set()
            report(0.5)
            time.sleep(0.01)

    jobs.get("key", endless)
    wait_for(began)
    closing = threading.Thread(target=jobs.close)
    closing.start()
    finish(closing)
    assert not caplog.records


# -------------------------------------------------------------------------------------------------------- metrics


def test_counters_add_up():
    metrics = Metrics()
    metrics.observe("/a", "GET", 200, 0.02)
    metrics.observe("/a", "GET", 200, 100.0)
    metrics.observe('/"b\n', "GET", 500, 0.001)
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    a = ("route", "/a")
    assert samples["polysem_requests_total", ("method", "GET"), a, ("status", "200")] == 2
    assert samples["polysem_requests_total", ("method", "GET"), ("route", '/"b\n'), ("status", "500")] == 1
    buckets = {
        bound: samples["polysem_request_seconds_bucket", ("le", bound), a] for bound in ("0.01", "0.025", "+Inf")
    }
    assert buckets == {"0.01": 0, "0.025": 1, "+Inf": 2}
    assert samples["polysem_request_seconds_count", a] == 2


def test_paths_are_cut_to_their_last_part():
    given = {"a": "/home/me/data/flickr", "b": ["C:\\Users\\me\\model", "word/and/word"], "c": 3, "d": "10 % of / all"}
    assert strip_paths(given) == {"a": "flickr", "b": ["model", "word/and/word"], "c": 3, "d": "10 % of / all"}
