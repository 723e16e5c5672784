"""Pages that people look at: prose, tables and interactive charts in one HTML file, figures and tables as files."""

from fedbc.reports.advice_page import advice_chart, advice_page, advice_table
from fedbc.reports.charts import Chart, write_figure
from fedbc.reports.comparison import Comparison, compare, is_comparison, run_comparison
from fedbc.reports.page import Code, Page, Pick, Prose, Section, Toggles
from fedbc.reports.tables import SCORES, Column, Table, shown_scores, write_table
from fedbc.simulation.curves import draw_curves

__all__ = [
    "SCORES",
    "Chart",
    "Code",
    "Column",
    "Comparison",
    "Page",
    "Pick",
    "Prose",
    "Section",
    "Table",
    "Toggles",
    "advice_chart",
    "advice_page",
    "advice_table",
    "compare",
    "draw_curves",
    "is_comparison",
    "run_comparison",
    "shown_scores",
    "write_figure",
    "write_table",
]
