//! Columns that line up. The last column is wrapped at words where it is wider than the terminal.

use std::fmt;

/// Rows of cells under a heading.
pub struct Table {
    rows: Vec<Vec<String>>,
    width: usize,
}

impl Table {
    pub fn new(heading: &[&str]) -> Self {
        let heading = heading.iter().map(|cell| (*cell).to_owned()).collect();
        Self { rows: vec![heading], width: terminal_width() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

/// Columns of the terminal; 100 where there is none.
pub fn terminal_width() -> usize {
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    named.unwrap_or_else(|| console::Term::stdout().size_checked().map_or(100, |(_, columns)| usize::from(columns)))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_columns = self.rows[0].len();
        let width = |i: usize| self.rows.iter().map(|row| console::measure_text_width(&row[i])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..n_columns - 1).map(width).collect();
        let indent = widths.iter().map(|width| width + 2).sum::<usize>();
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&widths) {
                let padding = width - console::measure_text_width(cell);
                write!(f, "{cell}{:padding$}  ", "")?;
            }
            // A terminal too narrow for that gets the line as it is.
            let room = if self.width > indent + 20 { self.width - indent } else { usize::MAX };
            let lines = wrap(&row[n_columns - 1], room);
            writeln!(f, "{}", lines.join(&format!("\n{:indent$}", "")))?;
        }
        Ok(())
    }
}

/// A line broken at spaces, so that no piece is longer than `width` unless one word is.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        let n_columns = console::measure_text_width(line) + 1 + console::measure_text_width(word);
        if !line.is_empty() && n_columns > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_the_last_is_wrapped() {
        let mut table = Table::new(&["NAME", "ABOUT"]);
        table.width = 35;
        table.row(["a-long-name".to_owned(), "some words that do not fit".to_owned()]);
        table.row(["é".to_owned(), "short".to_owned()]);
        let expected = "NAME         ABOUT\n\
                        a-long-name  some words that do not\n             \
                        fit\n\
                        é            short\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn wraps_at_words_only() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("incomprehensibilities", 5), ["incomprehensibilities"]);
        assert_eq!(wrap("", 5), [""]);
    }
}
