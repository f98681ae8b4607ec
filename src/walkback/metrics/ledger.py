"""Run tables: read, pooled, and turned into the arrays that statistics are made on."""

from __future__ import annotations

import csv
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from walkback.core.errors import BadInput
from walkback.metrics.compat import ranks

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
FEW_REPEATS = 0.1  # of the rows: so many equal another by rounding
MISSING = ("", "NA", "N/A", "nan", "NaN")  # not None or null, which may be the name of a category


def read_tables(files: Sequence[str | Path]) -> pd.DataFrame:
    """Rows of all files; columns that only some have are empty in the others."""
    import pandas as pd

    if not files:
        raise BadInput("Name at least one CSV file.")
    return pd.concat([_read(Path(file)) for file in files], ignore_index=True, sort=False)


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    if not file.is_file():
        raise BadInput(f"There is no file {file}.")
    try:
        _check_header(file)
        # whole columns: in parts, a category 1.50 is 1.5 wherever its part of the file holds no text
        table = pd.read_csv(
            file, index_col=False, keep_default_na=False, na_values=MISSING, low_memory=False
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{file} is not a sound CSV table: {str(error).splitlines()[0]}") from None
    if table.empty:
        raise BadInput(f"{file} has no rows.")
    return table


def _check_header(file: Path) -> None:
    """pandas renames a column that comes twice, and takes rows that are too long for rows with an index."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines)
        names = next(rows, [])
        twice = [name for name in names if name and names.count(name) > 1]
        if twice:
            raise BadInput(f"{file} has more than one column {twice[0]!r}.")
        for row in rows:
            if any(row[len(names) :]):
                raise BadInput(f"{file}, line {rows.line_num}: more values than there are columns.")


def is_number(column: pd.Series) -> bool:
    import pandas as pd

    kinds = pd.api.types
    odd = kinds.is_bool_dtype(column) or kinds.is_complex_dtype(column)
    return bool(kinds.is_numeric_dtype(column)) and not odd


def in_one_order(frame: pd.DataFrame, first: Sequence[str]) -> pd.DataFrame:
    """The same rows in one order, however the table is sorted: by the columns `first`, then by all others.

    Folds and draws go by a row's place. Rows that tie are equal in every column, so that none is preferred.
    """
    others = sorted(frame.drop(columns=list(first)).items(), key=lambda named: str(named[0]))
    columns = [*(frame[name] for name in first), *(column for _, column in others)]
    keys = [(each if is_number(each) else each.astype(str)).factorize(sort=True)[0] for each in columns]
    return frame.iloc[np.lexsort(keys[::-1])]


@dataclass(frozen=True)
class Duplicates:
    """Rows that repeat others: `identical` in metric, target and controls; `same_design` in controls."""

    identical: int
    same_design: int

    @property
    def sentence(self) -> str:
        return (
            f"{self.identical} rows equal an earlier one in metric, target and all controls; "
            f"{self.same_design} repeat an earlier one's controls."
        )


def count_duplicates(
    frame: pd.DataFrame, metric: str, target: str, controls: Sequence[str], seed: str | None
) -> Duplicates:
    """Counted before any statistic. Two runs are one design if all controls agree, the seed included."""
    design = [*controls, *([seed] if seed and seed not in controls else [])]
    identical = int(frame.duplicated([*dict.fromkeys([metric, target, *design])]).sum())
    repeated = int(frame.duplicated(design).sum()) if design else 0
    return Duplicates(identical, repeated)


def repeated_runs(frame: pd.DataFrame, measured: Sequence[str]) -> NDArray[np.bool_]:
    """Rows that equal an earlier one in every column, where what was not measured tells all runs apart."""
    hashed = [index for index in range(frame.shape[1]) if _is_hashable(frame.iloc[:, index])]
    frame = frame.iloc[:, hashed]
    repeated = frame.duplicated().to_numpy(bool)
    names = frame.loc[~repeated, ~frame.columns.isin(list(measured))]
    tells_apart = names.shape[1] > 0 and not names.duplicated().any()
    return repeated if tells_apart else np.zeros(len(frame), dtype=bool)


def _is_hashable(column: pd.Series) -> bool:
    """Columns of lists or arrays cannot be compared."""
    return column.dtype != object or column.map(lambda value: isinstance(value, Hashable)).all()


def drop_repeats(frame: pd.DataFrame, columns: Sequence[str], measured: Sequence[str]) -> pd.DataFrame:
    """Rows that equal an earlier one in all of `columns` count once: pooled files may hold the same runs,
    and a script that does not use its seed makes one run many times.

    Where all that was measured has few values, rows are equal by chance too, and then all of them stay.
    """
    once = frame.drop_duplicates(list(columns))
    fine = any(2 * once[name].nunique() > len(once) for name in measured)
    return once if fine else frame


def same_runs(frame: pd.DataFrame, columns: Sequence[str]) -> NDArray[np.int64] | None:
    """The run of every row, where more than a tenth of the rows equal another in all of `columns`.

    Rows agree by chance in what has few values. They are one run only where each of two columns by itself
    tells more than half of the runs apart: two such columns do not agree by chance.
    """
    runs = frame.groupby(list(columns), sort=False, observed=True).ngroup().to_numpy(np.int64)
    count = int(runs.max()) + 1
    fine = sum(2 * frame[name].nunique() > count for name in columns)
    return runs if fine >= 2 and count < (1 - FEW_REPEATS) * len(frame) else None


def design(frame: pd.DataFrame, controls: Sequence[str]) -> Array:
    """Control columns for rank statistics: ranks of numbers, one-hot categories without the first."""
    columns = [np.empty((len(frame), 0))]
    for name in controls:
        column = frame[name]
        if is_number(column):
            columns.append(ranks(column.to_numpy(float)).reshape(-1, 1))
        else:
            columns.append(one_hot(column))
    return np.column_stack(columns)


def one_hot(column: pd.Series) -> Array:
    """Zeros and ones, the first category (in sorted order) left out."""
    import pandas as pd

    return pd.get_dummies(column.astype(str), drop_first=True).to_numpy(float)
