"""What requests may take of memory: reserved as a whole or refused, and given back whatever happens."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import trio

from mq.doors.budget import ENOUGH_BYTES_PER_SECOND, PATIENCE_SECONDS, Budget, ClientMemory, PacedChunks, Room, Use
from mq.errors import BodyTooLarge, NoDisk, NoMemory, OverBudget


async def test_what_is_free_is_reserved_and_given_back() -> None:
    budget = Budget(100)
    with budget.reserve(60) as first:
        assert budget.free == 40
        with pytest.raises(NoMemory, match=r"41 bytes.* Try again"):
            budget.reserve(41)
        with budget.reserve(40):
            assert budget.free == 0
        first.cover(70)
        first.cover(10)
        assert (first.size, budget.free) == (70, 30)
    assert budget.free == 100


async def test_more_than_there_is_is_no_matter_of_time() -> None:
    budget = Budget(100)
    with budget.reserve(1), pytest.raises(BodyTooLarge, match=r"101 bytes .* limit is 100"):
        budget.reserve(101)
    assert budget.free == 100


async def test_what_is_refused_changes_nothing() -> None:
    budget = Budget(100)
    with budget.reserve(50), budget.reserve(10) as room:
        with pytest.raises(NoMemory):
            room.cover(51)
        assert (room.size, budget.free) == (10, 40)


async def test_an_error_gives_it_back() -> None:
    budget = Budget(100)
    with pytest.raises(ValueError, match=r"whatever"), budget.reserve(50):
        raise ValueError("whatever")
    assert budget.free == 100


async def test_it_shrinks_and_is_given_back_once() -> None:
    budget = Budget(100)
    room = budget.reserve(50)
    room.shrink(60)
    assert budget.free == 50
    room.shrink(20)
    assert budget.free == 80
    room.give_back()
    room.give_back()
    assert budget.free == 100


# Slow clients


class Trickle:
    """The same chunk again and again, with a pause before each."""

    def __init__(self, chunk: bytes, pause: float) -> None:
        self.chunk = chunk
        self.pause = pause

    def __aiter__(self) -> Trickle:
        return self

    async def __anext__(self) -> bytes:
        await trio.sleep(self.pause)
        return self.chunk


async def take(chunks: AsyncIterator[bytes], seconds: float) -> None:
    with trio.move_on_after(seconds):
        async for _ in chunks:
            pass


@pytest.mark.parametrize(("chunk", "is_slow"), [(b"x" * ENOUGH_BYTES_PER_SECOND, False), (b"x", True)])
async def test_who_sends_slowly_makes_room_when_others_want_it(
    autojump_clock: object, chunk: bytes, is_slow: bool
) -> None:
    budget, let_go = Budget(100), trio.Event()
    with budget.reserve(90) as room, room.arriving(Trickle(chunk, 0.5), let_go.set) as arrival:
        await take(arrival, PATIENCE_SECONDS - 1)
        with pytest.raises(NoMemory):
            budget.reserve(50)
        assert not let_go.is_set()  # it may become faster
        await take(arrival, 2)
        budget.reserve(10).give_back()
        assert not let_go.is_set()  # there is enough
        with pytest.raises(NoMemory):
            budget.reserve(50)
        assert let_go.is_set() is is_slow


async def test_time_that_mq_itself_takes_is_not_the_clients(autojump_clock: object) -> None:
    budget, let_go = Budget(100), trio.Event()
    with budget.reserve(90) as room, room.arriving(Trickle(b"x", 0), let_go.set) as arrival:
        await anext(arrival)
        await trio.sleep(PATIENCE_SECONDS * 2)
        with pytest.raises(NoMemory):
            budget.reserve(50)
        assert not let_go.is_set()


async def test_what_has_arrived_is_nobodys_to_take(autojump_clock: object) -> None:
    budget, let_go = Budget(100), trio.Event()
    with budget.reserve(90) as room:
        with room.arriving(Trickle(b"x", 1), let_go.set) as arrival:
            await take(arrival, PATIENCE_SECONDS * 2)
        with pytest.raises(NoMemory):
            budget.reserve(50)
    assert not let_go.is_set()


async def test_what_came_fast_does_not_excuse_a_pause(autojump_clock: object) -> None:
    """A body that comes in one piece but for its last bytes would hold its memory for minutes."""
    budget, let_go = Budget(100), trio.Event()

    async def burst() -> AsyncIterator[bytes]:
        await trio.sleep(0.1)
        yield bytes(100 * ENOUGH_BYTES_PER_SECOND)
        async for chunk in Trickle(b"x", 1):
            yield chunk

    with budget.reserve(90) as room, room.arriving(burst(), let_go.set) as arrival:
        await take(arrival, PATIENCE_SECONDS + 2)
        with pytest.raises(NoMemory):
            budget.reserve(50)
        assert let_go.is_set()


async def test_slowest_clients_end_first_and_no_more_than_are_needed(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    budget, ended = Budget(400), list[float]()
    for pause in (2.0, 4.0, 1.0, 3.0):
        room = budget.reserve(100)
        nursery.start_soon(take, arrival_of(budget, room, pause, ended), 1000)
    await trio.sleep(PATIENCE_SECONDS + 4)
    with pytest.raises(NoMemory):
        budget.reserve(150)
    assert ended == [4.0, 3.0]
    assert budget.ended == {Use.BODY: 2}
    nursery.cancel_scope.cancel()


def arrival_of(budget: Budget, room: Room, pause: float, ended: list[float]) -> PacedChunks:
    arrival = PacedChunks(Trickle(b"x", pause), room, lambda: ended.append(pause))
    budget.watch(arrival)
    return arrival


# Shares


def logged_in(budget: Budget, user: str) -> ClientMemory:
    memory = budget.client(f"a connection of {user}")
    memory.log_in(user)
    return memory


async def test_a_user_gets_a_quarter_over_all_connections() -> None:
    budget = Budget(800, has_users=True)
    first, second = [logged_in(budget, "alice") for _ in range(2)]
    first.reserve(Use.BODY, 150)
    with pytest.raises(NoMemory, match="the limit for user alice is 200"):
        second.reserve(Use.BODY, 51)
    second.reserve(Use.BODY, 50)
    logged_in(budget, "bob").reserve(Use.BODY, 200)


async def test_a_connection_gets_a_quarter_where_there_are_no_users() -> None:
    budget = Budget(800)
    first, second = budget.client("first"), budget.client("second")
    first.reserve(Use.BODY, 150)
    with pytest.raises(NoMemory, match="the limit for this connection is 200"):
        first.reserve(Use.BODY, 51)
    second.reserve(Use.BODY, 200)


async def test_clients_that_have_not_logged_in_share_an_eighth() -> None:
    budget = Budget(800, has_users=True)
    budget.client("first").reserve(Use.BODY, 60)
    with pytest.raises(NoMemory, match="the limit for clients that have not logged in is 100"):
        budget.client("second").reserve(Use.BODY, 41)
    logged_in(budget, "alice").reserve(Use.BODY, 200)


async def test_one_reservation_alone_may_be_larger_than_its_share() -> None:
    """A message may be as long as a quarter of the budget, and its batch is a little longer."""
    budget = Budget(800)
    memory = budget.client("a connection")
    with memory.reserve(Use.BODY, 300), pytest.raises(NoMemory):
        memory.reserve(Use.BODY, 1)
    memory.reserve(Use.BODY, 1).give_back()


@pytest.mark.parametrize(("first", "other"), [(Use.BODY, Use.ANSWER), (Use.DELIVERY, Use.PUBLISH)])
async def test_a_quarter_is_left_for_the_other_direction(first: Use, other: Use) -> None:
    budget = Budget(800)
    for number in range(3):
        budget.client(str(number)).reserve(first, 200)
    with pytest.raises(NoMemory):
        budget.client("one more").reserve(first, 1)
    budget.client("another").reserve(other, 200)
    assert budget.free == 0


async def test_log_in_moves_what_is_reserved_to_the_user() -> None:
    budget = Budget(800, has_users=True)
    memory = budget.client("a connection")
    room = memory.reserve(Use.BODY, 90)
    memory.log_in("alice")
    budget.client("a stranger").reserve(Use.BODY, 100)
    with pytest.raises(NoMemory, match="user alice"):
        logged_in(budget, "alice").reserve(Use.BODY, 111)
    room.give_back()
    logged_in(budget, "alice").reserve(Use.BODY, 111)


@pytest.mark.parametrize("use", [Use.PUBLISH, Use.STAGED])
async def test_reservation_that_was_empty_at_the_login_counts_for_the_user(use: Use) -> None:
    """A connection over AMQP makes its reservations before the login, and uses them later."""
    budget = Budget(800, 800, has_users=True)
    memory = budget.client("a connection")
    room = memory.reserve(use)
    memory.log_in("alice")
    assert room.free == 200
    room.cover(150)
    budget.client("a stranger").reserve(use, 100)
    with pytest.raises(OverBudget, match="the limit for user alice is 200"):
        logged_in(budget, "alice").reserve(use, 51)


async def test_log_in_is_refused_when_the_user_has_too_much() -> None:
    budget = Budget(800, has_users=True)
    logged_in(budget, "alice").reserve(Use.BODY, 150)
    memory = budget.client("a connection")
    memory.reserve(Use.BODY, 51)
    with pytest.raises(NoMemory, match="user alice"):
        memory.log_in("alice")
    assert (memory.user, budget.free) == (None, 800 - 201)


async def test_a_request_of_a_connection_logs_in_with_the_connection() -> None:
    budget = Budget(800, has_users=True)
    connection = budget.client("a connection")
    connection.reserve(Use.INPUT, 60)
    request = connection.request()
    request.reserve(Use.REQUEST, 40)
    request.log_in("alice")
    budget.client("a stranger").reserve(Use.BODY, 100)
    assert (request.reserved, connection.user) == (40, "alice")


async def test_the_end_of_a_connection_gives_everything_back() -> None:
    budget = Budget(800)
    memory = budget.client("a connection")
    rooms = [memory.reserve(use, 10) for use in Use]
    memory.request().reserve(Use.ANSWER, 50)
    memory.close()
    assert budget.free == 800
    for room in rooms:
        room.give_back()
    assert budget.free == 800


async def test_a_refusal_is_counted_and_logged_once_a_minute(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    budget = Budget(800, has_users=True)
    memory = logged_in(budget, "alice")
    memory.reserve(Use.ANSWER, 200)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(NoMemory):
                memory.reserve(Use.ANSWER, 7)
        [line] = caplog.messages
        assert line.startswith("could not reserve 7 bytes of memory for user alice, connection a connection")
        assert line.endswith(
            "(use: answer), because 200 of 200 bytes are already in use by user alice (setting: --memory)"
        )
        await trio.sleep(61)
        with pytest.raises(NoMemory):
            memory.reserve(Use.ANSWER, 7)
    assert caplog.messages[1].endswith(" (2 more since the last such line)")
    assert budget.refused == {Use.ANSWER: 4}


async def test_disk_has_shares_of_its_own() -> None:
    budget = Budget(800, 80, has_users=True)
    alice = logged_in(budget, "alice")
    alice.reserve(Use.BODY, 200)
    alice.reserve(Use.STAGED, 20)
    assert (budget.used, budget.staged, alice.reserved) == (200, 20, 200)
    with pytest.raises(NoDisk, match="the limit for user alice is 20"):
        logged_in(budget, "alice").reserve(Use.STAGED, 1)
    budget.client("a stranger").reserve(Use.STAGED, 10)
    with pytest.raises(NoDisk, match="the limit for clients that have not logged in is 10"):
        budget.client("another").reserve(Use.STAGED, 1)
    with pytest.raises(BodyTooLarge, match=r"81 bytes of disk space, but the limit is 80 bytes \(--staging\)"):
        logged_in(budget, "bob").reserve(Use.STAGED, 81)
    alice.close()
    assert (budget.used, budget.staged) == (0, 10)


async def test_refusal_of_disk_is_counted_and_logged(autojump_clock: object, caplog: pytest.LogCaptureFixture) -> None:
    budget = Budget(800, 80)
    memory = budget.client("a connection")
    memory.reserve(Use.STAGED, 20)
    with caplog.at_level(logging.WARNING), pytest.raises(NoDisk):
        memory.reserve(Use.STAGED, 7)
    [line] = caplog.messages
    assert line.startswith("could not reserve 7 bytes of disk space for user -, connection a connection")
    assert line.endswith(
        "(use: staged), because 20 of 20 bytes are already in use by this connection (setting: --staging)"
    )
    assert budget.refused == {Use.STAGED: 1}


# Slow readers


async def read(room: Room, size: int, seconds: int) -> None:
    for _ in range(seconds):
        await trio.sleep(1)
        room.shrink(room.size - size)


@pytest.mark.parametrize(("a_second", "is_slow"), [(ENOUGH_BYTES_PER_SECOND, False), (1, True)])
async def test_a_client_that_reads_slowly_makes_room_when_others_want_it(
    autojump_clock: object, a_second: int, is_slow: bool
) -> None:
    budget, ended = Budget(40 << 20), trio.Event()
    memory = budget.client("a connection", ended.set)
    room = memory.reserve(Use.ANSWER, 10 << 20)
    room.begin_sending()
    await read(room, a_second, PATIENCE_SECONDS + 2)
    assert not ended.is_set()  # no other client wants it
    with pytest.raises(NoMemory):
        memory.reserve(Use.ANSWER, 10 << 20)
    assert ended.is_set() is is_slow


async def test_a_client_that_waits_for_memory_gets_it_once_it_is_free(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    budget = Budget(800)
    first, second = budget.client("first").reserve(Use.DELIVERY, 200), budget.client("second").reserve(Use.DELIVERY)
    third = budget.client("third").reserve(Use.DELIVERY, 250)
    nursery.start_soon(second.cover_soon, 180)
    await trio.testing.wait_all_tasks_blocked()
    assert second.size == 0
    first.shrink(170)
    await trio.testing.wait_all_tasks_blocked()
    assert (second.size, third.size, budget.free) == (180, 250, 200)
