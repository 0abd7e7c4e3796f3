"""A planner's questions to the simulator: an answer is that to the last question, also where the
one before was another planner's."""

from types import SimpleNamespace

from tandem.cluster.gateway.demand_record import DemandRecord, Entry
from tandem.cluster.gateway.members import Members
from tandem.cluster.gateway.shape_questions import ShapeQuestions
from tandem.facts.fleet import Role
from tandem.facts.shapes import ShapeFigures
from tandem.messages.gateway import ShapesSimulated, SimulateShapes
from tandem.policy.planning.contract import Plan, Question

SECOND = 1_000_000_000
# Forty requests have come by then.
NOW_NS = 40 * SECOND


def questions() -> ShapeQuestions:
    record = DemandRecord(600.0)
    for second in range(40):
        record.request_submitted(Entry(second * SECOND, 10, 5, "", ""))
    return ShapeQuestions(record, Members("model", "revision"), lambda worker: worker[0], 4)


def ask(questions: ShapeQuestions, now_ns: int, *sizes: tuple[int, int]) -> SimulateShapes:
    """As a planner asks for the first time."""

    def after(plan: Plan) -> dict[str, Role]:
        prefill = {f"p-{index}": Role.PREFILL for index in range(plan.prefill)}
        return prefill | {f"d-{index}": Role.DECODE for index in range(plan.decode)}

    plans = tuple(Plan(*each) for each in sizes)
    question = Question(1, plans, 600.0, requests=200, rate_per_s=1.0, cpu_s=1.0, limit_s=30.0)
    return questions.ask(question, lambda: SimpleNamespace(after=after), 0, now_ns)


def found(asked: SimulateShapes, *kept: float) -> ShapesSimulated:
    figures = (ShapeFigures(100, each, 1.0, 0.1, 0.2, 0.01, 0.02, 1) for each in kept)
    return ShapesSimulated(asked.question_id, figures=tuple(figures))


def kept(questions: ShapeQuestions) -> list[float]:
    return [each.kept for each in questions.answer.figures]


def test_another_planner_does_not_take_the_answer_to_a_question_before():
    asking = questions()
    before = ask(asking, NOW_NS, (1, 3), (2, 2))
    asking.answered(found(before, 0.1, 0.9), NOW_NS)
    assert kept(asking) == [0.1, 0.9]
    asked = ask(asking, NOW_NS + SECOND, (2, 2), (1, 3))
    assert asking.answer is None
    # It comes twice, or late.
    asking.answered(found(before, 0.1, 0.9), NOW_NS + SECOND)
    assert asking.answer is None
    asking.answered(found(asked, 0.8, 0.2), NOW_NS + SECOND)
    assert (asking.answer.serial, kept(asking)) == (1, [0.8, 0.2])


def test_a_late_answer_is_not_taken_for_that_to_the_first_question_of_a_record_made_anew():
    before = ask(questions(), NOW_NS, (1, 3), (2, 2))
    anew = questions()
    ask(anew, NOW_NS + SECOND, (2, 2), (1, 3))
    anew.answered(found(before, 0.1, 0.9), NOW_NS + SECOND)
    assert anew.answer is None


def test_an_overdue_answer_is_not_waited_for():
    asking = questions()
    asked = ask(asking, NOW_NS, (1, 3), (2, 2))
    asking.expire(NOW_NS + 34 * SECOND)
    assert asking.answer is None
    asking.expire(NOW_NS + 35 * SECOND)
    assert asking.answer.problem == "no answer in 35 s"
    asking.answered(found(asked, 0.1, 0.9), NOW_NS + 36 * SECOND)
    assert asking.answer.figures == ()
