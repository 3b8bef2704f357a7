"""The leader of an attempt: it begins the attempt, decides how the attempt ended, and writes that into the ledger.

A node (`agent/node.py`) runs the processes. Bookkeeping never fails a run (promise 7). The tracker follows the ledger
in a process of its own.
"""

import logging
import signal
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from m5ws.agent import admission, failure, link, prepare, recovery, run_lock, stop, work_files
from m5ws.agent.admission import Waiting
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.link import StartAgain
from m5ws.agent.node import Events, Node, NodeEnd
from m5ws.agent.ports import Ports, Watch
from m5ws.attempts import aftermath, begin, failed_end, interventions, planning, repeated_steps, restarting, results
from m5ws.attempts.followers import Followers
from m5ws.attempts.judgement import Judgement, Signs, judge
from m5ws.attempts.results import AttemptResult
from m5ws.attempts.stuck_ranks import StuckRanks
from m5ws.attempts.tracking import Tracking
from m5ws.errors import M5Error
from m5ws.outputs import merging
from m5ws.progress import Progress, report
from m5ws.records.environment import Observed
from m5ws.records.failure import EndReason
from m5ws.records.ledger import NODE, AttemptEnded, Notice, NoticeKind, RankStarted, State, Step
from m5ws.records.nodes import Ended
from m5ws.repository import removals
from m5ws.repository.ledger.spool import SpoolWriter, genesis
from m5ws.repository.ledger.tail import LedgerTail
from m5ws.repository.references import checkpoints
from m5ws.repository.transfer import local_copies
from m5ws.supervision.losses import Losses
from m5ws.supervision.restarts import Decision
from m5ws.tracking.interface import LOGGED
from m5ws.work import directories
from m5ws.work.directories import WorkDirectory

_log = logging.getLogger(__name__)
JOIN_S = 600.0
"""The longest wait for all nodes of an attempt."""


def execute(
    ports: Ports,
    plan: AttemptPlan,
    watch: Watch | None = None,
    progress: Progress | None = None,
    poll: Callable[[], None] = lambda: None,
    accept: admission.Accept = lambda *_: None,
    judge: Watch | None = None,
) -> AttemptResult:
    """Run one attempt to its end. Raises RunAlive if the run is alive, Fenced if the attempt has begun elsewhere,
    Removed after the end of an attempt of a removed run, and StartAgain after the end of a replay that lost a node.

    The attempt begins when its environment is known, and `accept` did not raise an error; before, nothing is published.
    `watch` gets each event as it is written, and `judge` in another thread, where it may wait for the store.
    `poll` is called several times a second while the ranks run. Ctrl-C (KeyboardInterrupt) stops the ranks and ends the
    attempt as interrupted. Published data stays. Output files of a finished attempt that are in the store are removed
    from its work directory, unless the ports keep them.
    """
    followers = Followers(plan, link.key_of(ports.job or plan.run))
    try:
        result = _execute(ports, plan, followers, watch, progress, poll, accept, judge)
    except BaseException as error:
        is_refused = not isinstance(error, (StartAgain, interventions.Cancelled, KeyboardInterrupt))
        followers.close(results.status_of(error, plan), is_refused=is_refused)
        raise
    if result.again and not plan.context.goes_on:
        # No later attempt continues a replay: its command starts again.
        raise StartAgain(f"{plan.run.id}, which replays run {plan.run.reproduces}, lost a node")
    if result.reason is not None and result.reason.kind == "removed":
        raise removals.Removed(f"attempt {plan.attempt} of run {plan.run.id} was stopped: {result.reason.problem}")
    return result


def _execute(
    ports: Ports,
    plan: AttemptPlan,
    followers: Followers,
    watch: Watch | None,
    progress: Progress | None,
    poll: Callable[[], None],
    accept: admission.Accept,
    judge: Watch | None,
) -> AttemptResult:
    """Run one attempt with its followers, as `execute` does."""
    home = plan.directory.parent
    home.mkdir(parents=True, exist_ok=True)
    with run_lock.lock_run(home, notify=partial(report, progress)):
        tracking = Tracking(ports, plan)
        tracking.announce()
        begin.refuse_stale(ports.repo, plan)
        for attempt in range(1, plan.attempt):
            recovery.finish(ports.repo, plan.run.id, attempt, home / f"{attempt:04d}")
        if plan.attempt > 1:
            aftermath.make_up(ports, plan.run, plan.attempt - 1, home / f"{plan.attempt - 1:04d}")
        prepare.clear(plan)

        def look() -> None:
            poll()
            followers.refuse_lost()

        def accept_all(observed: Observed) -> None:
            accept(observed, followers.observed(look))

        before = interventions.Interventions(ports, plan)

        def look_before() -> None:
            poll()
            before.refuse_cancelled()

        try:
            followers.gather(JOIN_S, look_before, progress)
            plan = planning.take_published(ports.repo, plan)
            followers.send_plan(plan)
            plan, work = prepare.prepare(ports, plan, progress)
            spool_path = Path(plan.context.spool_dir) / f"{NODE}.spool"
            with (
                admission.launched(ports, plan, accept_all, progress, look) as waiting,
                closing(SpoolWriter(spool_path, genesis(plan.run.id, plan.attempt, NODE))) as spool,
            ):
                with begin.ended(spool):
                    begin.publish(ports, plan, waiting.observed, spool)
                    followers.begin()
                    begun = _Attempt(ports, plan, work, waiting, spool, watch, judge, progress, followers, tracking)
                    # After the start: the `rm` of a removal that this look does not meet lists the attempt.
                    begun.interventions.look_after_start()
                result = begun.supervise(poll)
                followers.close(results.status_of_all(result))
        finally:
            directories.end(plan.directory)
        if plan.run.spec.outputs and result.outcome == "finished" and result.delivered and not ports.keep_work:
            report(progress, "removing output files that are stored")
            work_files.remove_outputs(ports.repo, plan.run.id, plan.attempt, plan.directory)
        if result.outcome == "finished" and result.delivered:
            local_copies.remove(plan.context.local, plan.run.id)
        return result


class _Attempt:
    """The supervision of one attempt that has begun."""

    def __init__(
        self,
        ports: Ports,
        plan: AttemptPlan,
        work: WorkDirectory,
        waiting: Waiting,
        spool: SpoolWriter,
        watch: Watch | None,
        judge: Watch | None,
        progress: Progress | None,
        followers: Followers,
        tracking: Tracking,
    ) -> None:
        self._ports, self._plan, self._progress = ports, plan, progress
        self._followers, self._ends = followers, list[Ended]()
        self._spool = spool
        self._watch, self._compare = watch, judge
        self._ending: EndReason | None = None
        self.interventions = interventions.Interventions(ports, plan)
        self._tracking = tracking
        self._last_step = checkpoints.step_of(plan.resume) if plan.resume else 0
        self._restored = self._has_begun = self._has_enough = False
        self._announced = 0
        self._failures = failure.Failures()
        is_compared_elsewhere = judge is not None and plan.place.nodes > 1
        self._elsewhere = LedgerTail(ports.repo, plan.run.id, but=0) if is_compared_elsewhere else None
        self._losses = Losses(ports.loss)
        self._repeated = repeated_steps.RepeatedSteps(ports.repo, plan.run.id, plan.attempt)
        self._node = Node(ports, plan, work, waiting, spool, self._notice, progress)
        self._stuck_ranks = StuckRanks(self._node.watcher, followers, spool.append)

    def supervise(self, poll: Callable[[], None]) -> AttemptResult:
        if self.interventions.removal is not None:
            removed = NodeEnd(exit_code=1, time_s=time.time())
            return self._end(*self._judge(removed), removed.time_s)
        end = self._node.run(self._listen, self._show, poll, self._stop_followers, lambda: self._followers.is_training)
        with stop.unwarned():
            return self._keep(end)

    def _keep(self, end: NodeEnd) -> AttemptResult:
        """Keep the results of the processes, which have ended, and write the end of the attempt."""
        if end.exit_code:
            # The ranks of other nodes may wait for ranks of this node, for ever.
            self._followers.stop(stop.GRACE_S)
        self._ends = self._followers.await_ends(stop.patience_s(self._plan.context.saving), self._progress)
        self._show(self._node.read_new())
        self._seen(self._node.deliver_rest())
        self._compare_elsewhere()
        self.interventions.look_after_end()
        outcome, exit_code, reason = self._judge(end)
        unsaved = self._node.keep_results(has_finished=outcome == "finished", is_stopped=self._is_asked(end))
        others = (f"node {node}: {end.unsaved}" for node, end in enumerate(self._ends, 1) if end.unsaved)
        unsaved = unsaved or next(others, None)
        if conflict := self._find_conflict():
            if outcome == "finished":
                outcome, exit_code, reason = "failed", 1, EndReason(kind="outputs conflict", problem=conflict)
            else:
                self._notice("outputs-conflict", conflict)
        if outcome == "finished" and unsaved is not None:
            outcome, exit_code = "unsaved", recovery.UNSAVED_STATUS
            reason = EndReason(kind="unsaved", problem=unsaved)
            if self.interventions.look_for_removal():
                outcome, exit_code, reason = self._judge(end)
        if outcome == "finished" or self._has_enough:
            # A replay that was stopped is never resumed.
            self._node.results.remove_inputs()
        if outcome == "failed" and reason is None:
            reason = self._find_failure(exit_code)
        result = self._end(outcome, exit_code, reason, end.time_s)
        return msgspec.structs.replace(result, asked=result.asked or self._is_asked(end))

    def _find_conflict(self) -> str | None:
        """Return the conflict of output files of several nodes. An error of the store changes nothing."""
        run = self._plan.run.id
        try:
            return merging.find_conflict(self._ports.repo, run, self._plan.attempt) if self._ends else None
        except (M5Error, OSError) as error:
            _log.warning("cannot compare the output files of the nodes of run %s: %s", run, error)
            return None

    def _judge(self, end: NodeEnd) -> Judgement:
        """Return the outcome of the attempt, its exit status, and the reason if there is one."""
        cancel = self.interventions.cancel
        # Known not to have restored the parent's checkpoint: it is no fork.
        unrestored = self._plan.context.parent is not None and not self._restored and self._node.delivery.complete
        signs = Signs(
            status=end.exit_code,
            worst=max((each.exit_code for each in self._ends), default=0),
            fence=self.interventions.fence(end.exit_code),
            request=self._request(end),
            cancel=EndReason(kind="cancelled", host=cancel.host or "") if cancel is not None else None,
            ending=self._ending,
            lost=self._followers.lost,
            problem=end.problem,
            network=self._node.nccl.problem,
            enough=self._has_enough,
            unrestored=unrestored,
        )
        return judge(signs)

    def _request(self, end: NodeEnd) -> str | None:
        """Return the signal by which the user stopped this node or another."""
        return next(filter(None, (end.request, *(each.request for each in self._ends))), None)

    def _is_asked(self, end: NodeEnd) -> bool:
        """Return True if a user or a scheduler stopped the attempt."""
        return self.interventions.cancel is not None or self._request(end) is not None

    def _show(self, events: Events) -> float | None:
        """Show new events. Return the processes' time to end if the attempt needs no more steps, or if it is fenced.

        After an inexact resume or a loss that must end the attempt, no rank may save a last checkpoint. On a wrong
        network, ranks do not wait for each other.
        """
        self._judge_losses(events)
        stops = [bool(self._watch(rank, event)) for rank, event in events] if self._watch is not None else []
        self._has_enough = self._has_enough or any(stops)
        self._followers.look()
        self._end_because(self._followers.inexact)
        if self._ending is not None and self._ending.kind == "stuck":
            return self._stop_all(stop.GRACE_S)
        if self._ending is not None or self._node.nccl.problem is not None:
            return self._stop_all(0.0)
        if (asked := self._followers.asked) is not None:
            return self._stop_all(asked.grace_s)
        if self.interventions.cancel is not None:
            return self._stop_all(stop.patience_s(self._plan.context.saving))
        if not (self._has_enough or self._followers.has_failed):
            stuck = self._stuck_ranks.look()
            self._end_because(stuck)
            return self._stop_all(stop.GRACE_S) if stuck is not None else None
        return self._stop_all(stop.GRACE_S)

    def _judge_losses(self, events: Events) -> None:
        """Write a notice for each loss that breaks a rule, and end the attempt if the rule does so."""
        steps = [event for rank, event in events if rank == "0" and isinstance(event, Step)]
        for finding in (finding for step in steps for finding in self._losses.add(step)):
            self._notice("loss", finding.text, finding.step)
            if finding.stops and self._plan.context.goes_on:
                self._end_because(EndReason(kind="loss", rank=0, step=finding.step, problem=finding.text))

    def _end_because(self, reason: EndReason | None) -> None:
        """Keep the first reason for which m5ws ends the attempt. The thread of `_listen` finds reasons too."""
        self._ending = self._ending or reason

    def _stop_all(self, grace_s: float) -> float:
        """Stop the processes of the followers, and return the time of this node's processes to end."""
        self._followers.stop(grace_s)
        return grace_s

    def _stop_followers(self, name: str) -> None:
        """Pass the user's signal on to the followers, whose ranks may save a last checkpoint."""
        self._followers.stop(stop.patience_s(self._plan.context.saving), stop.number_of(name))

    def _listen(self, events: Events) -> None:
        """Take new events. Waits for the store."""
        is_enough = self._seen(events)
        if events:
            is_enough = self._compare_elsewhere() or is_enough
        if self._has_begun and self._node.delivery.batches > self._announced:
            self._announced = self._node.delivery.batches
            self._tracking.follow()
        if is_enough or self.interventions.look_at_intervals():
            self._has_enough = True

    def _seen(self, events: Events) -> bool:
        """Take delivered events. Return True if their comparison needs no more steps."""
        is_enough = False
        for rank, event in events:
            self._last_step = max(self._last_step, getattr(event, "step", None) or 0)
            self._node.results.add(event)
            self._failures.add(event)
            self._has_begun = self._has_begun or isinstance(event, RankStarted)
            self._restored = self._restored or (isinstance(event, State) and event.restored)
            self._repeated.compare(rank, event)
            is_enough = bool(self._compare and self._compare(rank, event)) or is_enough
        for step, message in self._repeated.take_moved():
            self._notice("data-position", message, step)
        for difference in self._repeated.take():
            self._notice("inexact-resume", str(difference), difference.step)
            if self._ports.inexact == "stop":
                self._end_because(EndReason(kind="inexact resume", problem=str(difference)))
        return is_enough

    def _compare_elsewhere(self) -> bool:
        """Compare new events of other nodes, which are in the store. Return True if they need no more steps."""
        new = Events()
        try:
            for _, rank, event in self._elsewhere.poll() if self._elsewhere is not None else ():
                new.append((rank, event))
        except (M5Error, OSError) as error:
            _log.warning("cannot read the events of other nodes of run %s yet: %s", self._plan.run.id, error)
        # Every event is compared, also after the first that is enough.
        compared = [self._compare is not None and self._compare(rank, event) for rank, event in new]
        return any(compared)

    def _notice(self, kind: NoticeKind, message: str, step: int | None = None) -> None:
        step = self._last_step if step is None else step
        self._spool.append(Notice(time_s=time.time(), kind=kind, message=message, step=step))

    def _find_failure(self, exit_code: int) -> EndReason:
        """Return the failure of the ranks. A rank without torchrun is the launched process itself."""
        is_plain = self._plan.run.spec.trainer in ("python", "command")
        statuses = {0: exit_code} if is_plain else failure.read_statuses(Path(self._plan.request.log))
        for end in self._ends:
            statuses |= {int(rank): status for rank, status in end.statuses.items()}
            for ended in end.ranks:
                self._failures.add(ended)
        killed_after = self._plan.context.killed_after
        if killed_after is not None and -signal.SIGKILL in statuses.values():
            return EndReason(kind="killed for a test", step=killed_after)
        return self._failures.find_reason(statuses) or EndReason(kind="status", status=exit_code)

    def _end(self, outcome: str, exit_code: int, reason: EndReason | None, time_s: float) -> AttemptResult:
        """Write the end of the attempt, deliver the rest of the ledger, and wait a little for the tracker."""
        heads = {rank: head for end in self._ends for rank, head in end.heads.items()}
        ended = AttemptEnded(
            time_s=time_s,
            outcome=outcome,  # type: ignore[arg-type]
            exit_code=exit_code,
            reason=reason,
            heads=self._node.delivery.heads() | heads,
            is_whole=self._followers.lost is None and not any(end.unsaved for end in self._ends),
            logged=(self._plan.directory / LOGGED).exists(),
        )
        self._spool.append(ended)
        self._show(self._node.read_new())
        self._seen(self._node.delivery.finish())
        self._tracking.follow()
        incident, decision, is_asked = None, None, False
        untracked: str | None = ""
        try:
            if outcome == "failed":
                ports, plan = self._ports, self._plan
                incident = failed_end.record(ports.repo, ports.causes, plan.run, plan.attempt, plan.directory / "logs")
                decision = None if _has_lost(reason) else restarting.decide(ports, plan)
            untracked = self._tracking.close(self._progress)
        except KeyboardInterrupt:
            if not self._plan.context.goes_on:
                raise
            # The attempt has its end. Ctrl-C ends the search for the cause and the wait, and no next attempt begins.
            decision, is_asked = None, True
        return AttemptResult(
            run=self._plan.run.id,
            attempt=self._plan.attempt,
            outcome=outcome,
            exit_code=exit_code,
            reason=reason,
            delivered=self._node.delivery.complete,
            superseded=self.interventions.successor is not None,
            untracked=untracked,
            asked=is_asked,
            again=self._is_to_start_again(reason, decision),
            restart=decision,
            incident=incident,
        )

    def _is_to_start_again(self, reason: EndReason | None, decision: Decision | None) -> bool:
        """Return True if the scheduler that started this agent shall start all agents again.

        A replay that is stopped has no later attempt: it would start from its beginning.
        """
        is_warned = reason is not None and (reason.kind, reason.signal) == ("stopped", signal.SIGUSR2.name)
        has_next = self._plan.place.job is not None and self._plan.context.goes_on
        is_restarted = decision is not None and decision.again
        return _has_lost(reason) or (has_next and (is_warned or is_restarted))


def _has_lost(reason: EndReason | None) -> bool:
    """Return True if the loss of a node ended the attempt."""
    return reason is not None and reason.kind == "node lost"
