//! Data for stdout: text, tables and JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Writes data to stdout and flushes it. Returns whether there still is a reader: one that has gone away
/// (`| head`) is not an error of the command.
///
/// # Errors
/// What the system says.
pub(crate) fn write_data(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("write to stdout", error)),
    }
}

/// Writes one JSON value and a line end to stdout.
///
/// # Errors
/// As [`write_data`].
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::system("write JSON", error))?;
    write_data(&format!("{text}\n")).map(drop)
}

/// Renders rows under headings, in columns as wide as their widest cell. Columns of `right` are numbers.
pub(crate) fn table(headings: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let width_of = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width_of).collect();
    let mut text = String::new();
    let headings: Vec<String> = headings.iter().map(|heading| heading.to_string()).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let written = if right.contains(&column) {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
            written.expect("a string takes any text");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let rows =
            vec![vec!["a".to_owned(), "1".to_owned()], vec!["longer name".to_owned(), "17".to_owned()]];
        assert_eq!(table(&["name", "n"], &[1], &rows), "name          n\na             1\nlonger name  17\n");
    }
}
