"""The formulas as the notebook writes them follow from its two balances."""

import re

import nbformat
import pytest
import sympy
from conftest import ROOT

NOTEBOOK = nbformat.read(ROOT / "notebooks/01_derivation.ipynb", as_version=4)
CELLS = {cell.id: cell.source for cell in NOTEBOOK.cells}
NAMES = {
    name: sympy.Symbol(name, positive=True)
    for name in ("A", "B", "C", "L", "kappa", "K_1", "K_2", "k", "a_1", "a_2")
}
PLAIN = {NAMES["a_1"]: 0, NAMES["a_2"]: 0, NAMES["k"]: 0}


def read(latex):
    """A sympy expression of the LaTeX used here: ``\\,`` multiplies, a star is no new unknown."""
    text = latex.replace("^*", "").replace("\\kappa", "kappa")
    while (shorter := re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)) != text:
        text = shorter
    text = text.replace("\\,", "*")
    assert "\\" not in text, text
    return sympy.sympify(text, locals=NAMES)


def equations(cell):
    """The displayed equations of a cell, in order, without those that hold a function."""
    shown = re.findall(r"\$\$(.+?)\$\$", CELLS[cell], re.S)
    return [sympy.Eq(*map(read, formula.split("="))) for formula in shown if "max" not in formula]


def solved(balances):
    (solution,) = sympy.solve(balances, [NAMES["B"], NAMES["C"]], dict=True)
    return solution


def holds(equation, solution):
    return sympy.simplify((equation.lhs - equation.rhs).subs(solution)) == 0


def test_both_closed_forms_of_step_5_solve_its_balances():
    *balances, c_first, b_then, b_first, c_then = equations("closed-form")
    assert len(balances) == 2
    solution = solved(balances)
    assert c_first.lhs == c_then.lhs == NAMES["C"] and b_first.lhs == b_then.lhs == NAMES["B"]
    for equation in (c_first, b_then, b_first, c_then):
        assert holds(equation, solution), equation
    assert not c_first.rhs.has(NAMES["B"]) and not b_first.rhs.has(NAMES["C"])


def test_the_closed_form_of_step_7_solves_its_balances_and_holds_that_of_step_5():
    *balances, c, b = equations("refined")
    assert len(balances) == 2 and not b.rhs.has(NAMES["C"])
    solution = solved(balances)
    assert holds(c, solution) and holds(b, solution)
    plain = solved(equations("closed-form")[:2])
    for name in ("B", "C"):
        unknown = NAMES[name]
        assert sympy.simplify(solution[unknown].subs(PLAIN) - plain[unknown]) == 0


def test_the_price_of_a_request_holds_with_all_terms():
    (formula,) = re.findall(r"\$C\^\* = \((.+?)\)/\((.+?)\)\$", CELLS["refined"])
    price = sympy.Eq(NAMES["C"], read(formula[0]) / read(formula[1]))
    assert holds(price, solved(equations("refined")[:2]))


def test_the_answers_to_the_questions_hold():
    """C* does not depend on K1, B* doubles where K1 halves; sampler and cache meet at K2/kappa."""
    solution = solved(equations("closed-form")[:2])
    halved = {NAMES["K_1"]: NAMES["K_1"] / 2}
    assert not sympy.simplify(solution[NAMES["C"]]).has(NAMES["K_1"])
    assert sympy.simplify(solution[NAMES["B"]].subs(halved) / solution[NAMES["B"]]) == 2
    assert "$L = K_2/\\kappa$" in CELLS["request-question"]
    refined = solved(equations("refined")[:2])
    ratio = (refined[NAMES["B"]] / refined[NAMES["C"]]).subs({NAMES["a_1"]: 0, NAMES["a_2"]: 0})
    assert sympy.simplify(ratio - NAMES["K_2"] / (NAMES["K_1"] - NAMES["k"])) == 0


@pytest.mark.parametrize(
    "wrong", [r"C^* = \frac{A}{L\,\kappa - K_2}", r"B^* = \frac{K_1}{K_2}\,C^*"]
)
def test_a_wrong_formula_would_be_found(wrong):
    equation = sympy.Eq(*map(read, wrong.split("=")))
    assert not holds(equation, solved(equations("closed-form")[:2]))
