"""Waits for stores: each outage is reported once when it is noticed, and once at its end."""

from m5ws.waits import Wait, Waits


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.lines: list[str] = []
        self.waits = Waits(clock=lambda: self.now_s)
        self.waits._watcher = _Alive()  # type: ignore[assignment]  # `check` is called by hand
        self.waits.report(self.lines.append)

    def begin(self, action: str = "writing a", size_bytes: int = 0, store: str = "s3://b") -> Wait:
        return self.waits.wait(store, action, size_bytes).__enter__()

    def end(self, wait: Wait, *, is_answered: bool = True) -> None:
        wait.is_answered = is_answered
        wait.__exit__(None, None, None)

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.waits.check()


class _Alive:
    def is_alive(self) -> bool:
        return True


def test_an_outage_is_reported_after_ten_seconds_and_at_its_end() -> None:
    clock = _Clock()
    first = clock.begin()
    first.problem = "503 SlowDown"
    clock.later(10.0)
    assert clock.lines == []
    for _ in range(30):
        clock.later(1.0)
    assert len(clock.lines) == 1 and "s3://b" in clock.lines[0] and "503 SlowDown" in clock.lines[0]
    clock.end(first, is_answered=False)
    second = clock.begin("writing b")
    clock.later(20.0)
    clock.end(second)
    assert clock.lines[1:] == ["the store s3://b answers again, after 60 s"]
    assert not clock.waits.is_away


def test_an_answer_of_another_kind_of_request_does_not_end_an_outage() -> None:
    clock = _Clock()
    clock.begin("writing a")
    clock.later(11.0)
    for _ in range(5):
        clock.end(clock.begin("reading b"))
        clock.end(clock.begin("writing b", store="/another"))
        clock.later(1.0)
    assert len(clock.lines) == 1 and clock.waits.is_away


def test_requests_that_wait_together_are_one_outage() -> None:
    clock = _Clock()
    waiting = [clock.begin(f"writing {number}") for number in range(20)]
    for wait in waiting:
        clock.later(11.0)
        assert len(clock.lines) == 1
        clock.end(wait)
    assert len(clock.lines) == 2


def test_a_slow_transfer_is_no_outage_unless_an_attempt_failed() -> None:
    clock = _Clock()
    wait = clock.begin(size_bytes=64 * 2**20)
    clock.later(60.0)
    assert clock.lines == []
    wait.problem = "the connection was reset"
    clock.later(1.0)
    assert len(clock.lines) == 1
