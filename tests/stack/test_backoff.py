from tailwatch_stack.native.backoff import Backoff


def test_what_keeps_ending_is_waited_for_ever_longer_up_to_a_minute() -> None:
    backoff = Backoff()
    waits = [backoff.next_seconds(ran_seconds=59.9) for _ in range(9)]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_run_of_a_minute_is_a_new_beginning() -> None:
    backoff = Backoff()
    waits = [backoff.next_seconds(ran_seconds) for ran_seconds in (1, 1, 1, 60, 1)]
    assert waits == [0, 1, 2, 0, 1]
