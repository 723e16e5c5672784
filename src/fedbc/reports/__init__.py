"""Pages that people look at: prose, tables and interactive charts in one HTML file, figures and tables as files."""

from fedbc.reports.charts import Chart, write_figure
from fedbc.reports.page import Page, Pick, Prose, Section, Toggles
from fedbc.reports.tables import Column, Table, write_table

__all__ = [
    "Chart",
    "Column",
    "Page",
    "Pick",
    "Prose",
    "Section",
    "Table",
    "Toggles",
    "write_figure",
    "write_table",
]
