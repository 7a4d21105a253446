//! A table for people, which can be written piece by piece.

use super::width::{columns, cut_middle, fit, pad};

/// What stands between two columns.
const GAP: &str = "  ";

/// A table whose later rows are not known when the first are written: its columns only become wider.
pub(crate) struct Table<'a> {
    headings: &'a [&'a str],
    /// The columns of numbers.
    right: &'a [usize],
    /// The columns that may be cut, and the width of the terminal, if there is one.
    cut: Option<(&'a [usize], usize)>,
    widths: Vec<usize>,
    has_begun: bool,
}

impl<'a> Table<'a> {
    /// Begins a table.
    pub(crate) fn new(headings: &'a [&'a str], right: &'a [usize]) -> Table<'a> {
        let widths = headings.iter().map(|heading| columns(heading)).collect();
        Table { headings, right, cut: None, widths, has_begun: false }
    }

    /// Cuts cells of these columns so that a row fits on a terminal, if there is one.
    #[must_use]
    pub(crate) fn cut(mut self, may_be_cut: &'a [usize], terminal: Option<usize>) -> Table<'a> {
        self.cut = terminal.map(|width| (may_be_cut, width));
        self
    }

    /// Renders more rows, the first ones under the headings. A column is as wide as its widest cell so far.
    pub(crate) fn render(&mut self, rows: &[Vec<String>]) -> String {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = columns(cell).max(*width);
            }
        }
        let mut widths = self.widths.clone();
        if let Some((may_be_cut, most)) = self.cut {
            fit(&mut widths, may_be_cut, GAP.len(), most);
        }
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.write(&mut text, self.headings, &widths);
        }
        for row in rows {
            self.write(&mut text, row, &widths);
        }
        text
    }

    fn write(&self, text: &mut String, row: &[impl AsRef<str>], widths: &[usize]) {
        let cell = |(column, cell): (usize, &_)| {
            let cell: &str = AsRef::as_ref(cell);
            let may_be_cut = self.cut.is_some_and(|(columns, _)| columns.contains(&column));
            let cell = if may_be_cut { cut_middle(cell, widths[column]) } else { cell.into() };
            pad(&cell, widths[column], self.right.contains(&column))
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        text.push_str(cells.join(GAP).trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, number: &str) -> Vec<String> {
        vec![name.to_owned(), number.to_owned()]
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let rows = [row("a", "1"), row("longer name", "17"), row("账单", "3")];
        let mut table = Table::new(&["name", "n"], &[1]);
        let text = "name          n\na             1\nlonger name  17\n账单          3\n";
        assert_eq!(table.render(&rows), text);
        assert_eq!(table.render(&rows[..1]), "a             1\n", "the headings come once");
        assert_eq!(Table::new(&["name", "n"], &[1]).render(&[]), "name  n\n");
    }

    #[test]
    fn a_row_fits_on_the_terminal_and_numbers_stay_whole() {
        let rows = [row(&"账".repeat(85), "123456"), row("short", "1")];
        let mut table = Table::new(&["name", "n"], &[1]).cut(&[0], Some(40));
        let text = table.render(&rows);
        assert!(text.lines().all(|line| columns(line) <= 40), "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|line| line.contains('…') && line.ends_with("123456")),
            "{text}"
        );
        assert!(text.lines().nth(2).is_some_and(|line| line.starts_with("short ")), "{text}");
    }
}
