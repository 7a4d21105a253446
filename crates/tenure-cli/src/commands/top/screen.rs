//! Draws what `tenure top` shows. The same screen is printed by `--once`.
//!
//! All text from the store goes through `Printable` on its way here, and a cell takes no control character: a name cannot steer the
//! terminal. Nothing is told by colour alone.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use tenure::{Instant, Printable, View};
use tenure_core::survey::{NAMES_MAX, SurveyedQueue};

use super::state::{Page, State};
use crate::commands::status::holder;
use crate::duration::format_duration;
use crate::listing::width::{columns, cut_middle, fit, pad};
use crate::listing::{Line, ends_in, oldest};
use crate::output::holder::who;

/// How many lines are above the first row.
pub(super) const ABOVE: usize = 4;
/// And below the last one.
pub(super) const BELOW: usize = 1;
/// Between two columns.
const GAP: usize = 2;

const LOCK_HEADINGS: [&str; 6] = ["NAME", "KIND", "HOLDER", "HELD", "ENDS IN", "WAITING"];
const QUEUE_HEADINGS: [&str; 6] = ["QUEUE", "WAITING", "IN FLIGHT", "DEAD", "OLDEST", "NEXT IN"];
const HOLD_HEADINGS: [&str; 7] = ["", "WHO", "TOKEN", "SLOT", "UNITS", "HELD", "ENDS IN"];

const KEYS: [(&str, &str); 12] = [
    ("up, down, j, k", "move the bar; PgUp, PgDn, Home, End"),
    ("Enter", "show a lock: who holds it, and who waits, in order"),
    ("Esc", "back; in a list: take the filter away"),
    ("Tab, 1, 2", "locks, queues"),
    ("s", "sort by the next column: held, waiting, ends, name"),
    ("r", "turn the order round"),
    ("/", "show only names, holders and kinds with a text in them"),
    ("f", "free a lock: break its hold, after a question"),
    ("Ctrl-Z", "stop; `fg` goes on"),
    ("?", "these keys"),
    ("q, Ctrl-C", "quit"),
    ("", "The store is asked for 5 % of the time at most."),
];

/// Draws everything. `is_still`: it is printed once, and no key is heard.
pub(super) fn draw(state: &State, now: Instant, is_still: bool, buffer: &mut Buffer) {
    let mut page = Sheet { area: buffer.area, buffer };
    header(state, now, &mut page);
    let (headings, right, may_be_cut, rows) = table(state);
    page.table(
        headings,
        right,
        may_be_cut,
        &rows,
        (!is_still).then(|| state.selected() - state.shown().start),
    );
    if rows.is_empty() {
        page.line(ABOVE, Style::new(), &empty(state));
    }
    if is_still {
        return;
    }
    let last = usize::from(page.area.height).saturating_sub(BELOW);
    page.line(last, Style::new().add_modifier(Modifier::DIM), &footer(state));
    if let Some(question) = &state.question {
        let lines: Vec<&str> = question.text.lines().collect();
        page.box_of(&[&lines[..], &["", "y: yes   any other key: no"]].concat());
    } else if state.shows_keys {
        let lines: Vec<String> = KEYS.iter().map(|(key, what)| format!("{key:<16}{what}")).collect();
        page.box_of(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

fn header(state: &State, now: Instant, page: &mut Sheet<'_>) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(seen) = &state.seen else {
        page.line(0, bold, &state.engine);
        page.line(1, Style::new(), &trouble(state).unwrap_or("looking at the store ...".to_owned()));
        return;
    };
    let survey = &seen.survey;
    let (age, took) = (now.since(survey.at), survey.took);
    let answer = millis(seen.answer);
    let told = format!("answers in {answer}; looked {} ago, for {}", format_duration(age), millis(took));
    let room = usize::from(page.area.width).saturating_sub(columns(&told) + GAP);
    page.line(0, bold, &format!("{}{}{told}", cut_middle(&state.engine, room), " ".repeat(GAP)));
    let grants = match &seen.changes {
        Some(changes) => format!("{:.1} grants/s", changes.rate(changes.grants)),
        None => "- grants/s".to_owned(),
    };
    let queues = match survey.queues.len() {
        1 => "1 queue".to_owned(),
        count => format!("{count} queues"),
    };
    let more = if survey.is_whole {
        String::new()
    } else {
        format!("; of more than {NAMES_MAX} names these are some")
    };
    page.line(1, bold, &format!("{}, {queues}, {grants}{more}", seen.totals));
    page.line(2, Style::new(), &trouble(state).unwrap_or_else(|| about(state)));
}

/// Says that what is shown is old, and why.
fn trouble(state: &State) -> Option<String> {
    state.trouble.as_ref().map(|why| format!("! no answer: {}", Printable(why)))
}

/// Says what of all is shown.
fn about(state: &State) -> String {
    let (sort, order) = (state.sort.as_str(), if state.is_reversed { ", turned round" } else { "" });
    let filter = match state.filter.as_str() {
        "" => String::new(),
        filter => format!("; only with \"{}\"", Printable(filter)),
    };
    let range = match state.shown() {
        range if range.len() == state.length() => String::new(),
        range => format!("; {} to {} of {}", range.start + 1, range.end, state.length()),
    };
    match &state.page {
        Page::Locks => format!("locks by {sort}{order}{filter}{range}"),
        Page::Queues => format!("queues{filter}{range}"),
        Page::Lock(name) => match &state.detail.view {
            Some(Some(view)) => format!(
                "{name}: {}, {} of {} in use, last token {}, {} waiting",
                view.kind, view.used, view.capacity, view.last_token, view.waiting
            ),
            _ => name.to_string(),
        },
    }
}

fn empty(state: &State) -> String {
    match (&state.page, &state.detail.view) {
        (Page::Lock(_), Some(None)) => "nobody holds it, and nobody waits".to_owned(),
        (Page::Lock(_), _) => "looking at it ...".to_owned(),
        _ if state.seen.is_none() => String::new(),
        _ if !state.filter.is_empty() => "nothing has that in it: Esc takes the filter away".to_owned(),
        (Page::Queues, _) => "there are no queues".to_owned(),
        (Page::Locks, _) => "nothing is held".to_owned(),
    }
}

fn footer(state: &State) -> String {
    if state.is_typing {
        return format!("/{}_   Enter: done   Esc: show all", Printable(&state.filter));
    }
    if let Some(message) = &state.message {
        return Printable(message).to_string();
    }
    match state.page {
        Page::Lock(_) => "Esc back  f free  ? keys  q quit".to_owned(),
        _ => "Enter show  s sort  r turn round  / filter  Tab queues  f free  ? keys  q quit".to_owned(),
    }
}

type Table = (&'static [&'static str], &'static [usize], &'static [usize], Vec<Vec<String>>);

/// The headings, the columns of numbers, those that may be cut, and the rows that fit.
fn table(state: &State) -> Table {
    let shown = state.shown();
    match (&state.page, &state.seen, &state.detail.view) {
        (Page::Lock(_), _, Some(Some(view))) => {
            let rows = entries(view).skip(shown.start).take(shown.len()).collect();
            (&HOLD_HEADINGS, &[2, 3, 4, 5, 6], &[1], rows)
        }
        (Page::Lock(_), ..) | (_, None, _) => (&[], &[], &[], Vec::new()),
        (Page::Locks, Some(seen), _) => {
            let rows = state.locks[shown].iter().map(|at| lock(&seen.survey.locks[*at])).collect();
            (&LOCK_HEADINGS, &[3, 4, 5], &[0, 2], rows)
        }
        (Page::Queues, Some(seen), _) => {
            let rows = state.queues[shown].iter().map(|at| queue(&seen.survey.queues[*at])).collect();
            (&QUEUE_HEADINGS, &[1, 2, 3, 4, 5], &[0], rows)
        }
    }
}

/// A lock in a row: its oldest hold, and how many more there are.
fn lock((name, view): &Line) -> Vec<String> {
    let nothing = || "-".to_owned();
    let view = match view {
        Ok(view) => view,
        Err(error) => {
            let text = format!("unreadable: {}", Printable(&error.to_string()));
            return vec![name.to_string(), nothing(), text, nothing(), nothing(), nothing()];
        }
    };
    let shown = oldest(view).or(view.holds.first());
    let who = match (shown, view.holds.len()) {
        (None, _) => "nobody".to_owned(),
        (Some(hold), 1) => holder(hold),
        (Some(hold), count) => format!("{} and {} more", holder(hold), count - 1),
    };
    let held = oldest(view).map_or_else(nothing, |hold| format_duration(hold.held_for));
    let ends = ends_in(view).map_or_else(nothing, format_duration);
    vec![name.to_string(), view.kind.to_string(), who, held, ends, view.waiting.to_string()]
}

fn queue(queue: &SurveyedQueue) -> Vec<String> {
    let nothing = || "-".to_owned();
    let stats = match &queue.stats {
        Ok(stats) => stats,
        Err(error) => {
            let name = format!("{} (unreadable: {})", queue.name, Printable(&error.to_string()));
            return vec![name, nothing(), nothing(), nothing(), nothing(), nothing()];
        }
    };
    let oldest = queue.oldest_waiting.map_or_else(nothing, format_duration);
    let next = match stats.next_in {
        None => nothing(),
        Some(Duration::ZERO) => "now".to_owned(),
        Some(time) => format_duration(time),
    };
    let counts = [stats.waiting, stats.in_flight, stats.dead].map(|count| count.to_string());
    [queue.name.to_string()].into_iter().chain(counts).chain([oldest, next]).collect()
}

/// The holds of a lock, then its waiters in the order in which they will be granted it.
fn entries(view: &View) -> impl Iterator<Item = Vec<String>> {
    let nothing = || "-".to_owned();
    let holds = view.holds.iter().map(move |hold| {
        let (what, who) =
            if hold.claim.is_some() { ("holds", who(&hold.label)) } else { ("rests", holder(hold)) };
        let slot = hold.slot.map_or_else(nothing, |slot| slot.to_string());
        let (held, ends) = (format_duration(hold.held_for), format_duration(hold.ends_in));
        vec![what.to_owned(), who, hold.token.to_string(), slot, hold.weight.to_string(), held, ends]
    });
    let waiters = view.waiters.iter().enumerate().map(move |(at, waiter)| {
        let (place, who) = (format!("waits {}", at + 1), who(&waiter.label));
        vec![place, who, nothing(), nothing(), waiter.weight.to_string(), nothing(), nothing()]
    });
    holds.chain(waiters)
}

/// A short time, where a tenth of a millisecond matters.
fn millis(time: Duration) -> String {
    match time.as_millis() {
        0..100 => format!("{:.1}ms", time.as_secs_f64() * 1000.0),
        _ => format_duration(time),
    }
}

/// A screen to draw on. What does not fit is left out.
struct Sheet<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
}

impl Sheet<'_> {
    fn line(&mut self, y: usize, style: Style, text: &str) {
        self.text(0, y, style, &cut_middle(text, self.area.width.into()));
    }

    fn text(&mut self, x: usize, y: usize, style: Style, text: &str) {
        let (width, height) = (usize::from(self.area.width), usize::from(self.area.height));
        if x < width && y < height {
            self.buffer.set_stringn(x as u16, y as u16, text, width - x, style);
        }
    }

    /// Draws rows below their headings. `bar` is the row that is selected.
    fn table(
        &mut self,
        headings: &[&str],
        right: &[usize],
        may_be_cut: &[usize],
        rows: &[Vec<String>],
        bar: Option<usize>,
    ) {
        let mut widths: Vec<usize> = headings.iter().map(|heading| columns(heading)).collect();
        for row in rows {
            widths.iter_mut().zip(row).for_each(|(width, cell)| *width = columns(cell).max(*width));
        }
        fit(&mut widths, may_be_cut, GAP, self.area.width.into());
        let bold = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        let headings: Vec<String> = headings.iter().map(|heading| heading.to_string()).collect();
        self.row(ABOVE - 1, bold, &headings, right, &widths);
        for (at, row) in rows.iter().enumerate() {
            let style =
                if bar == Some(at) { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            self.row(ABOVE + at, style, row, right, &widths);
        }
    }

    fn row(&mut self, y: usize, style: Style, cells: &[String], right: &[usize], widths: &[usize]) {
        let cell = |(at, cell): (usize, &String)| {
            pad(&cut_middle(cell, widths[at]), widths[at], right.contains(&at))
        };
        let cells: Vec<String> = cells.iter().enumerate().map(cell).collect();
        self.text(0, y, style, &cells.join(&" ".repeat(GAP)));
    }

    /// Draws lines in a frame, in the middle of the screen, over what is there.
    fn box_of(&mut self, lines: &[&str]) {
        let room = usize::from(self.area.width).saturating_sub(4);
        let width = lines.iter().map(|line| columns(line)).max().unwrap_or_default().min(room);
        let (x, y) = ((room - width) / 2, usize::from(self.area.height).saturating_sub(lines.len() + 2) / 2);
        let edge = "-".repeat(width + 2);
        // A wide character that the frame cuts in two would cover its edge.
        for line in 0..lines.len() + 2 {
            let at = (x.saturating_sub(1) as u16, (y + line) as u16);
            if let Some(cell) = self.buffer.cell_mut(at).filter(|cell| columns(cell.symbol()) > 1) {
                cell.set_symbol(" ");
            }
        }
        self.text(x, y, Style::new(), &format!("+{edge}+"));
        for (at, line) in lines.iter().enumerate() {
            let line = pad(&cut_middle(line, width), width, false);
            self.text(x, y + 1 + at, Style::new(), &format!("| {line} |"));
        }
        self.text(x, y + 1 + lines.len(), Style::new(), &format!("+{edge}+"));
    }
}

/// Returns a screen as lines of text.
pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let (mut text, mut covered) = (String::new(), 0);
        for cell in cells {
            // A wide character covers the cell behind it.
            if covered == 0 {
                text.push_str(cell.symbol());
                covered = columns(cell.symbol());
            }
            covered = covered.saturating_sub(1);
        }
        text.trim_end().to_owned()
    };
    buffer.content.chunks(width).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use crate::commands::top::state::tests::{press, see, state};
    use crate::listing::tests::{held, unreadable};

    /// The screen as lines, drawn as on a terminal of that size.
    fn drawn(state: &mut State, columns: u16, rows: u16) -> Vec<String> {
        state.height = usize::from(rows).saturating_sub(ABOVE + BELOW);
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
        let now = Instant::from_nanos(5_000_000_000);
        terminal.draw(|frame| draw(state, now, false, frame.buffer_mut())).expect("it is drawn");
        lines(terminal.backend().buffer())
    }

    #[test]
    fn a_screen_says_what_is_held_by_whom_and_how_old_that_is() {
        let mut state = state(vec![held("billing/4711", 5, 9), held("b", 50, 0)]);
        let screen = drawn(&mut state, 100, 8);
        assert!(screen[0].starts_with("local:  answers in 1.0ms; looked 5.0s ago, for "), "{screen:?}");
        assert_eq!(
            screen[1..],
            [
                "2 names: 2 held, 0 resting, 9 waiting, 0 queues, - grants/s",
                "locks by held",
                "NAME          KIND   HOLDER                       HELD  ENDS IN  WAITING",
                "b             mutex  backup.sh (pid 17 on host)  50.0s    30.0s        0",
                "billing/4711  mutex  backup.sh (pid 17 on host)   5.0s    30.0s        9",
                "",
                "Enter show  s sort  r turn round  / filter  Tab queues  f free  ? keys  q quit",
            ]
        );
        state.trouble = Some("connection \u{1b}[31mrefused".to_owned());
        let screen = drawn(&mut state, 100, 8);
        assert_eq!(
            screen[2], "! no answer: connection \\u{1b}[31mrefused",
            "what was seen stays, with its age"
        );
        assert!(screen[4].starts_with("b "));
    }

    #[test]
    fn it_fits_on_any_terminal() {
        let wide = "账".repeat(85);
        let mut state = state(vec![held(&wide, 5, 9), held("a\u{202e}b", 50, 0), unreadable("x")]);
        press(&mut state, KeyCode::Char('?'));
        for (width, rows) in [(80, 24), (200, 60), (40, 10), (10, 5), (1, 1), (3, 0), (0, 0)] {
            let screen = drawn(&mut state, width, rows);
            assert_eq!(screen.len(), usize::from(rows) * usize::from(width > 0), "{width}x{rows}");
            assert!(
                screen.iter().all(|line| columns(line) <= usize::from(width)),
                "{width}x{rows}: {screen:?}"
            );
        }
        press(&mut state, KeyCode::Esc);
        let screen = drawn(&mut state, 80, 24);
        assert!(screen[4].starts_with("a\\u{202e}b "), "{screen:?}");
        assert!(screen[5].contains("账…账") && screen[5].ends_with(" 9"), "{screen:?}");
        assert!(screen[6].contains("unreadable:"), "{screen:?}");
        let screen = drawn(&mut state, 200, 60);
        assert!(screen[5].contains(&"账".repeat(30)), "{screen:?}");
    }

    #[test]
    fn a_question_is_shown_over_what_is_there() {
        let mut state = state(vec![held(&"账".repeat(85), 5, 9)]);
        press(&mut state, KeyCode::Char('f'));
        let name = tenure::Name::new(&"账".repeat(85)).expect("a name");
        state.see_lock(&name, held(name.as_str(), 60, 9).1.ok(), Instant::from_nanos(0));
        let screen = drawn(&mut state, 80, 24).join("\n");
        for part in ["Its work will be ended", "Break it?", "y: yes"] {
            assert!(screen.contains(part), "{part}: {screen}");
        }
        for rows in 0..12 {
            let framed = drawn(&mut state, 80, rows);
            assert!(framed.iter().all(|line| columns(line) <= 80), "{framed:?}");
        }
    }

    #[test]
    fn a_list_that_is_longer_says_where_it_is() {
        let mut state =
            state((0..25).map(|number| held(&format!("n{number:02}"), 100 - number, 0)).collect());
        let screen = drawn(&mut state, 80, 15);
        assert_eq!(screen[2], "locks by held; 1 to 10 of 25");
        assert!(screen[13].starts_with("n09 ") && screen[14].starts_with("Enter show"), "{screen:?}");
        press(&mut state, KeyCode::End);
        assert_eq!(drawn(&mut state, 80, 15)[2], "locks by held; 21 to 25 of 25");
        see(&mut state, Vec::new(), 1);
        assert_eq!(drawn(&mut state, 80, 15)[4], "nothing is held");
    }
}
