//! The table of what was measured.

use std::fmt::Write as _;

/// One line of the table.
struct Row {
    what: String,
    ours: String,
    baseline: String,
    ratio: String,
    target: &'static str,
    is_met: bool,
}

/// All that was measured in one run.
pub(crate) struct Report {
    /// Whether what takes minutes is to take seconds.
    pub(crate) is_short: bool,
    rows: Vec<Row>,
}

/// Whether a ratio should be large or small.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64, &'static str),
    AtMost(f64, &'static str),
}

impl Report {
    pub(crate) fn new(is_short: bool) -> Report {
        Report { is_short, rows: Vec::new() }
    }

    /// Adds a line: what was measured, our figure and the baseline's in words, their ratio, and the target.
    pub(crate) fn add(&mut self, what: &str, ours: String, baseline: String, ratio: f64, target: Target) {
        let (target, is_met) = match target {
            Target::AtLeast(bound, text) => (text, ratio >= bound),
            Target::AtMost(bound, text) => (text, ratio <= bound),
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
            let met = if *is_met { "yes" } else { "no" };
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
