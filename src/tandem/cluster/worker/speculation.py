"""Speculation on one worker: which sequences get how many drafts, and what came of them."""

from collections.abc import Sequence as Ordered

from tandem.cluster.worker.decode_step_times import DecodeStepTimes, alike_sizes
from tandem.cluster.worker.draft_history import DraftHistory, DraftRecord
from tandem.cluster.worker.draft_tries import DraftTries
from tandem.cluster.worker.plan_builder import PlanBuilder
from tandem.cluster.worker.sequence import Phase
from tandem.facts.step_totals import DraftTotals
from tandem.facts.steps import StepResult
from tandem.facts.token_tree import NO_GUESSES
from tandem.policy.speculation import NO_DRAFTS, DraftChances, DraftRule, Speculation

# The rule is made anew after so many steps: soon where it drafts, where it says no seldom.
RULE_STEPS, DECLINED_STEPS = 8, 32
# Of the steps without drafts each so manyth is timed: what is spent on these is lost.
TIMED_STEPS = 4
# While it drafts, two steps go without after so many, the first time sooner, and the second is
# timed: something may have disturbed the last, and drafts would pay beside that for ever.
PLAIN_AFTER_STEPS, FIRST_PLAIN_AFTER_STEPS, PLAIN_TRIES = 128, 8, 3
# Of whom nothing is known yet.
_ANYBODY = (DraftRecord(),)


class Drafting:
    """Owns what was learnt; asked by the planner, told by the machine."""

    def __init__(
        self, speculation: Speculation, vocabulary_tokens: int, pipeline_stages: int
    ) -> None:
        self.speculation = speculation
        self._drafts = self._draft_tokens = self._declined = 0
        self._accepted_by_place = [0] * speculation.most_tokens
        self._totals: DraftTotals | None = None
        self._vocabulary_tokens = vocabulary_tokens
        self._pipelined = pipeline_stages > 1
        self._landed_ns = 0
        self._history = DraftHistory(speculation.most_tokens)
        self._times = DecodeStepTimes()
        self._rule = NO_DRAFTS
        # For how many it was made, and how long ago.
        self._rule_rows = self._rule_steps = 0
        # A token of one of these without drafts.
        self._plain_token_ns = 0.0
        self._tries = DraftTries()
        # When it is looked at again, by how many there are, where it says no.
        self._look_at_step: dict[int, int] = {}
        self._steps = 0
        self._until_plain_steps = FIRST_PLAIN_AFTER_STEPS

    @property
    def totals(self) -> DraftTotals:
        """Since the start; the same object as long as nothing has changed."""
        if self._totals is None:
            accepted = self._accepted_by_place
            self._totals = DraftTotals(
                self._drafts, self._draft_tokens, sum(accepted), tuple(accepted), self._declined
            )
        return self._totals

    def rule(self, running: Ordered[DraftRecord]) -> DraftRule:
        """For a step of these sequences; where it has none, for one that is to come."""
        self._steps += 1
        self._rule_steps += 1
        if self._rule_is_old(rows := alike_sizes(max(1, len(running)))):
            for record in running if not self._rule.longest else ():
                record.fade(self._rule_steps)
            self._make_rule(running or _ANYBODY, rows)
        if not self._rule.longest:
            if running:
                self._declined += len(running)
                self._totals = None
            return self._rule
        return NO_DRAFTS if self._goes_without() else self._rule

    def _goes_without(self) -> bool:
        """Whether a step that could draft is to be timed without; prompts may spoil that."""
        if not self.speculation.adaptive:
            return False
        self._until_plain_steps -= 1
        if self._until_plain_steps < -PLAIN_TRIES:
            self._until_plain_steps = PLAIN_AFTER_STEPS
        return self._until_plain_steps <= 0

    def _rule_is_old(self, rows: int) -> bool:
        if self._rule.longest:
            is_due = self._rule_steps >= RULE_STEPS and not self._tries.is_young(rows)
            return is_due or rows != self._rule_rows
        return self._tries.may_begin(rows) and self._steps >= self._look_at_step.get(rows, 0)

    def _make_rule(self, running: Ordered[DraftRecord], rows: int) -> None:
        """For as many sequences as these."""
        drafted_rows = self._rule_rows if self._rule.longest else 0
        self._rule_rows, self._rule_steps = rows, 0
        if not self.speculation.adaptive:
            self._rule = self.speculation.rule((), self._times)
            return
        if not self._times.known:
            # To be decided once a step was measured.
            return
        self._plain_token_ns = self._times.step_ns(len(running), 0) / len(running)
        self._rule = self.speculation.rule([self.chances(each) for each in running], self._times)
        if drafted_rows and (drafted_rows != rows or not self._rule.longest):
            goes_on = self._tries.paying
            self._tries.ended(drafted_rows, given_up=drafted_rows == rows)
            if self._rule.longest and not (goes_on or self._tries.may_begin(rows)):
                self._rule = NO_DRAFTS
        if not self._rule.longest:
            self._look_at_step[rows] = self._steps + DECLINED_STEPS

    def chances(self, record: DraftRecord) -> DraftChances:
        """Of the sequence whose record this is."""
        return self._history.chances(record)

    def step_landed(self, builder: PlanBuilder, result: StepResult, now_ns: int) -> None:
        """The tokens of a step were taken: its sequences get what it proposes, and what became of
        its drafts is remembered."""
        began_ns = builder.launched_ns
        # The steps of a pipeline overlap.
        if not self._pipelined:
            began_ns = max(began_ns, self._landed_ns)
        self._landed_ns = now_ns
        took_ns = float(now_ns - began_ns)
        if not builder.drafts:
            # As nearly always where drafts do not pay, and then nothing shall be spent on them.
            # The first step without drafts is not like those that follow: caches are cold.
            plain_due = self._until_plain_steps < 0
            each_counts = plain_due or not self._times.known
            by_turns = not self._rule.longest and not self._rule_steps % TIMED_STEPS
            if not builder.prompt_tokens and (each_counts or by_turns):
                steps = 1 if each_counts else TIMED_STEPS
                self._times.step_landed(builder.tokens, 0, took_ns, steps)
                self._tries.plain_landed(steps * took_ns)
                if plain_due:
                    self._until_plain_steps = PLAIN_AFTER_STEPS
            self._history.step_landed(drafted=False)
            return
        counts, proposals = iter(result.token_counts), iter(result.proposals)
        # Who begins to draft may have to catch up with what was said before, once.
        usual, gained = not builder.prompt_tokens, 0
        for (sequence, end_tokens, draws), drafted, depth, wanted in zip(
            builder.rows,
            builder.draft_counts,
            builder.draft_depths,
            builder.proposals,
            strict=True,
        ):
            if not draws:
                continue
            kept = next(counts, 1) - 1
            # Whoever made it.
            proposal = next(proposals, NO_GUESSES).sound(self._vocabulary_tokens, wanted)
            if self._pipelined:
                # Its stages before the last do not see which branch is kept in time to move KV.
                proposal = proposal.chain()
            usual = usual and not (wanted and sequence.drafts.catches_up)
            useful = kept
            if drafted and sequence.phase is not Phase.RUNNING:
                # What was kept behind the end of an answer is nothing gained.
                known_tokens = end_tokens - drafted
                useful = max(0, min(kept, sequence.known_tokens - known_tokens - 1))
            gained += 1 + useful
            tried = min(useful + 1, depth)
            self._history.row_landed(sequence.drafts, tried, useful, wanted, len(proposal))
            if drafted:
                self._count(drafted, kept)
            if sequence.phase is Phase.RUNNING:
                sequence.proposal = proposal
                if drafted:
                    # What was not kept is to be computed anew.
                    sequence.residency.scheduled = end_tokens - drafted + kept
        if self.speculation.adaptive and not builder.prompt_tokens:
            if usual:
                # What disturbed this one step is not what drafts cost.
                drafted = builder.longest_proposal
                took_ns = self._times.step_landed(builder.tokens, drafted, took_ns)
            rows = alike_sizes(len(builder.rows))
            self._tries.drafts_landed(rows, took_ns, gained * self._plain_token_ns)
        self._history.step_landed(drafted=True)

    def _count(self, drafted: int, kept: int) -> None:
        self._drafts += 1
        self._totals = None
        self._draft_tokens += drafted
        for place in range(kept):
            self._accepted_by_place[place] += 1
