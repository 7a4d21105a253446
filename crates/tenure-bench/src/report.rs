//! The table of what was measured.

use std::fmt::Write as _;

/// One line of the table.
struct Row {
    what: String,
    ours: String,
    baseline: String,
    ratio: String,
    target: &'static str,
    /// `None` where there is no target to meet.
    is_met: Option<bool>,
}

/// All that was measured in one run.
pub(crate) struct Report {
    /// Whether what takes minutes is to take seconds.
    pub(crate) is_short: bool,
    rows: Vec<Row>,
}

/// Whether a ratio should be large or small, or is only shown.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64, &'static str),
    AtMost(f64, &'static str),
    None,
}

impl Report {
    pub(crate) fn new(is_short: bool) -> Report {
        Report { is_short, rows: Vec::new() }
    }

    /// Adds a line: what was measured, our figure and the baseline's in words, their ratio, and the target.
    pub(crate) fn add(&mut self, what: &str, ours: String, baseline: String, ratio: f64, target: Target) {
        let (target, is_met) = match target {
            Target::AtLeast(bound, text) => (text, Some(ratio >= bound)),
            Target::AtMost(bound, text) => (text, Some(ratio <= bound)),
            Target::None => ("-", None),
        };
        let ratio = if ratio >= 100.0 { format!("{ratio:.0}") } else { format!("{ratio:.2}") };
        self.rows.push(Row { what: what.to_owned(), ours, baseline, ratio, target, is_met });
    }

    fn table(&self) -> String {
        let mut table = String::from(
            "| what | tenure | baseline | ratio or figure | target | met |\n| --- | --- | --- | --- | --- | --- |\n",
        );
        for row in &self.rows {
            let Row { what, ours, baseline, ratio, target, is_met } = row;
            let met = match is_met {
                Some(true) => "yes",
                Some(false) => "no",
                None => "",
            };
            writeln!(table, "| {what} | {ours} | {baseline} | {ratio} | {target} | {met} |")
                .expect("a string takes any text");
        }
        table
    }

    pub(crate) fn print(&self) {
        println!("{}", self.table());
    }

    /// Puts the table between the markers of a Markdown file.
    pub(crate) fn write(&self, file: &std::path::Path) -> std::io::Result<()> {
        const BEGIN: &str = "<!-- begin: measured -->\n";
        const END: &str = "<!-- end: measured -->\n";
        let text = std::fs::read_to_string(file)?;
        let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else {
            return Err(std::io::Error::other(format!("{} has no markers for the table", file.display())));
        };
        let machine = machine();
        let measured =
            format!("{BEGIN}\nCommand: `cargo xtask bench`. Machine: {machine}.\n\n{}\n", self.table());
        std::fs::write(file, format!("{}{measured}{}", &text[..begin], &text[end..]))
    }
}

/// Describes this machine in a line.
fn machine() -> String {
    let cpu_info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let system = rustix::system::uname();
    format!(
        "{cores} cores, {}, {} {}",
        model.trim_start_matches([' ', '\t', ':']),
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_without_a_target_meets_none() {
        let mut report = Report::new(true);
        for target in [Target::AtLeast(2.0, "≥ 2.0"), Target::AtMost(2.0, "≤ 2.0"), Target::None] {
            report.add("w", "o".to_owned(), "b".to_owned(), 1.0, target);
        }
        let table = report.table();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        let expected = [
            "| w | o | b | 1.00 | ≥ 2.0 | no |",
            "| w | o | b | 1.00 | ≤ 2.0 | yes |",
            "| w | o | b | 1.00 | - |  |",
        ];
        assert_eq!(rows, expected);
    }
}
