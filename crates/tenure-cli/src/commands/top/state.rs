//! What `tenure top` shows and what a key does: decisions alone. It asks nothing, draws nothing and reads no clock.

use std::sync::Arc;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rustix::process::Signal;
use tenure::{HoldView, Instant, Name, Token, View};
use tenure_core::survey::{Changes, Survey};

use crate::commands::release;
use crate::duration::format_duration;
use crate::exit;
use crate::listing::order::Sort;
use crate::listing::totals::Totals;
use crate::output::holder::who;

/// What the store was last seen to hold.
pub(super) struct Seen {
    pub(super) survey: Arc<Survey>,
    /// Since the survey before. `None`: this is the first.
    pub(super) changes: Option<Changes>,
    /// How long one call took.
    pub(super) answer: Duration,
    pub(super) totals: Totals,
}

/// What fills the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Locks,
    Queues,
    Lock(Name),
}

/// A lock, as it was when somebody looked at it alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    /// `None` inside: nobody holds it. Outside: nobody has answered yet.
    pub(super) view: Option<Option<View>>,
    pub(super) at: Option<Instant>,
    /// Which row of holds and waiters is selected.
    pub(super) selected: usize,
    /// Whether it was opened in order to free it.
    is_to_be_freed: bool,
}

/// A question that `y` says yes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) name: Name,
    pub(super) token: Token,
    pub(super) text: String,
}

/// What a key asks for beyond the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// End, with this exit code.
    Quit(u8),
    /// Stop, as Ctrl-Z does with other programs.
    Stop,
    /// Look at everything again.
    Survey,
    /// Look at this lock alone.
    Look(Name),
    /// Break a hold.
    Break(Name, Token),
}

/// See the top of the file.
pub(super) struct State {
    pub(super) engine: String,
    pub(super) seen: Option<Seen>,
    /// Why the store does not answer now.
    pub(super) trouble: Option<String>,
    pub(super) page: Page,
    pub(super) detail: Detail,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) shows_keys: bool,
    pub(super) question: Option<Question>,
    /// What came of the last act.
    pub(super) message: Option<String>,
    /// Which locks of the survey are shown, in which order.
    pub(super) locks: Vec<usize>,
    /// The same of queues.
    pub(super) queues: Vec<usize>,
    /// Where the bar is, and on which name: it stays with the name when the order changes.
    at: usize,
    on: Option<Name>,
    /// How many rows fit.
    pub(super) height: usize,
}

impl State {
    pub(super) fn new(engine: String, sort: Sort) -> State {
        State {
            engine,
            seen: None,
            trouble: None,
            page: Page::Locks,
            detail: Detail::default(),
            sort,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            shows_keys: false,
            question: None,
            message: None,
            locks: Vec::new(),
            queues: Vec::new(),
            at: 0,
            on: None,
            height: 20,
        }
    }

    /// Takes in a survey.
    pub(super) fn see(&mut self, survey: Arc<Survey>, answer: Duration) {
        let before = self.seen.take();
        let changes = match &before {
            Some(before) if Arc::ptr_eq(&before.survey, &survey) => before.changes,
            Some(before) => Some(survey.since(&before.survey)),
            None => None,
        };
        let totals = Totals::of(&survey.locks);
        self.seen = Some(Seen { survey, changes, answer, totals });
        self.trouble = None;
        self.arrange();
    }

    /// Takes in the view of one lock.
    pub(super) fn see_lock(&mut self, name: &Name, view: Option<View>, at: Instant) {
        if self.page != Page::Lock(name.clone()) {
            return;
        }
        self.trouble = None;
        (self.detail.view, self.detail.at) = (Some(view), Some(at));
        self.detail.selected = self.detail.selected.min(self.length().saturating_sub(1));
        if std::mem::take(&mut self.detail.is_to_be_freed) {
            self.free();
        }
    }

    /// Chooses and sorts what is shown.
    fn arrange(&mut self) {
        let Some(Seen { survey, .. }) = &self.seen else { return };
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let is_shown = |(name, view): &crate::listing::Line| {
            let of_view =
                |view: &View| has(view.kind.as_str()) || crate::listing::filter::has_holder(view, &wanted);
            wanted.is_empty() || has(name.as_str()) || view.as_ref().is_ok_and(of_view)
        };
        self.locks = (0..survey.locks.len()).filter(|at| is_shown(&survey.locks[*at])).collect();
        let sort = self.sort;
        self.locks.sort_by_cached_key(|at| sort.key(&survey.locks[*at]));
        self.queues = (0..survey.queues.len()).filter(|at| has(survey.queues[*at].name.as_str())).collect();
        if self.is_reversed {
            self.locks.reverse();
            self.queues.reverse();
        }
        self.follow();
    }

    /// Has the bar stay on its name, or where it was if the name is gone.
    fn follow(&mut self) {
        if self.at == 0 {
            // A user who has not moved the cursor looks at the first ones.
            self.on = None;
        }
        let place = self.on.as_ref().and_then(|on| (0..self.length()).find(|at| self.name(*at) == Some(on)));
        self.at = place.unwrap_or(self.at).min(self.length().saturating_sub(1));
        self.on = self.name(self.at).cloned();
    }

    /// How many rows the page has.
    pub(super) fn length(&self) -> usize {
        match (&self.page, &self.detail.view) {
            (Page::Locks, _) => self.locks.len(),
            (Page::Queues, _) => self.queues.len(),
            (Page::Lock(_), Some(Some(view))) => view.holds.len() + view.waiters.len(),
            (Page::Lock(_), _) => 0,
        }
    }

    /// The name in a row.
    fn name(&self, at: usize) -> Option<&Name> {
        let survey = &self.seen.as_ref()?.survey;
        match self.page {
            Page::Locks => Some(&survey.locks[*self.locks.get(at)?].0),
            Page::Queues => Some(&survey.queues[*self.queues.get(at)?].name),
            Page::Lock(_) => None,
        }
    }

    /// The row that is selected.
    pub(super) fn selected(&self) -> usize {
        if let Page::Lock(_) = self.page { self.detail.selected } else { self.at }
    }

    /// The rows that fit, with the selected one among them. They are turned over as pages, so that they stand still.
    pub(super) fn shown(&self) -> std::ops::Range<usize> {
        let height = self.height.max(1);
        let first = self.selected() / height * height;
        first..(first + height).min(self.length())
    }

    fn select(&mut self, at: usize) {
        let at = at.min(self.length().saturating_sub(1));
        match self.page {
            Page::Lock(_) => self.detail.selected = at,
            _ => (self.at, self.on) = (at, self.name(at).cloned()),
        }
    }

    /// Does what a key says.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit(exit::of_signal(Signal::INT.as_raw())),
                KeyCode::Char('z') => Action::Stop,
                _ => Action::Nothing,
            };
        }
        if let Some(question) = self.question.take() {
            let is_yes = matches!(key.code, KeyCode::Char('y' | 'Y'));
            if !is_yes {
                self.message = Some("nothing was broken".to_owned());
                return Action::Nothing;
            }
            return Action::Break(question.name, question.token);
        }
        if std::mem::take(&mut self.shows_keys) {
            return Action::Nothing;
        }
        if self.is_typing { self.type_key(key.code) } else { self.command(key.code) }
    }

    /// A key of the filter.
    fn type_key(&mut self, code: KeyCode) -> Action {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            _ => return Action::Nothing,
        }
        self.at = 0;
        self.arrange();
        Action::Nothing
    }

    fn command(&mut self, code: KeyCode) -> Action {
        let (at, height) = (self.selected(), self.height.max(1));
        match code {
            KeyCode::Char('q') | KeyCode::F(10) => return Action::Quit(0),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.shows_keys = true,
            KeyCode::Up | KeyCode::Char('k') => self.select(at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(at + 1),
            KeyCode::PageUp => self.select(at.saturating_sub(height)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.select(at + height),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Char('f') => return self.free(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => return self.back(),
            _ if matches!(self.page, Page::Lock(_)) => {}
            KeyCode::Enter | KeyCode::Right => return self.open(),
            KeyCode::Tab | KeyCode::Char('Q') => {
                let page = if self.page == Page::Locks { Page::Queues } else { Page::Locks };
                self.turn_to(page);
            }
            KeyCode::Char('1') => self.turn_to(Page::Locks),
            KeyCode::Char('2') => self.turn_to(Page::Queues),
            KeyCode::Char('/') | KeyCode::F(4) => self.is_typing = true,
            KeyCode::Char('s') | KeyCode::F(6) => {
                (self.sort, self.is_reversed) = (self.sort.next(), false);
                self.arrange();
            }
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            _ => {}
        }
        Action::Nothing
    }

    fn turn_to(&mut self, page: Page) {
        if self.page != page {
            (self.page, self.at, self.on) = (page, 0, None);
            self.follow();
        }
    }

    /// Shows the selected lock alone.
    fn open(&mut self) -> Action {
        let Some(name) = self.name(self.at).cloned().filter(|_| self.page == Page::Locks) else {
            return Action::Nothing;
        };
        (self.page, self.detail) = (Page::Lock(name.clone()), Detail::default());
        Action::Look(name)
    }

    /// Goes back to the list; there it takes the filter away.
    fn back(&mut self) -> Action {
        if let Page::Lock(_) = self.page {
            self.page = Page::Locks;
            self.follow();
            return Action::Survey;
        }
        self.filter.clear();
        self.arrange();
        Action::Nothing
    }

    /// Asks whether to break the selected hold, once it is known as it is now.
    fn free(&mut self) -> Action {
        let Page::Lock(name) = self.page.clone() else {
            let action = self.open();
            self.detail.is_to_be_freed = true;
            return action;
        };
        let Some(Some(view)) = &self.detail.view else {
            self.message = self.detail.view.as_ref().map(|_| "nobody holds it".to_owned());
            return Action::Nothing;
        };
        match meant(view, self.detail.selected) {
            Ok(hold) => {
                let text = release::question(name.as_str(), hold, false);
                self.question = Some(Question { name, token: hold.token, text });
            }
            Err(message) => self.message = Some(message),
        }
        Action::Nothing
    }
}

/// Returns the hold that is to be broken: of several, the selected one.
fn meant(view: &View, selected: usize) -> Result<&HoldView, String> {
    let Some(hold) = view.holds.get(selected) else {
        let who =
            view.waiters.get(selected.saturating_sub(view.holds.len())).map(|waiter| who(&waiter.label));
        return Err(who.map_or("nobody holds it".to_owned(), |who| format!("{who} waits, and holds nothing")));
    };
    if hold.claim.is_none() {
        let ends_in = format_duration(hold.ends_in);
        return Err(format!(
            "nobody holds it; it rests for {ends_in} more: only `tenure release --now` frees it"
        ));
    }
    Ok(hold)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::listing::Line;
    use crate::listing::tests::{held, hold};

    /// A state that has seen these locks.
    pub(in crate::commands::top) fn state(locks: Vec<Line>) -> State {
        let mut state = State::new("local:".to_owned(), Sort::Held);
        see(&mut state, locks, 0);
        state
    }

    pub(in crate::commands::top) fn see(state: &mut State, locks: Vec<Line>, second: u64) {
        // A survey is made by a surveyor alone: one of nothing, with what a test wants in it.
        let tenure = pollster::block_on(tenure::connect("memory:top-state")).expect("an engine");
        let survey =
            pollster::block_on(tenure_core::survey::Surveyor::new(&tenure).latest()).expect("answers");
        let mut survey = (*survey).clone();
        (survey.locks, survey.at) = (locks, Instant::from_nanos(second * 1_000_000_000));
        state.see(Arc::new(survey), Duration::from_millis(1));
    }

    pub(in crate::commands::top) fn press(state: &mut State, code: KeyCode) -> Action {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn type_in(state: &mut State, text: &str) {
        text.chars().for_each(|letter| assert_eq!(press(state, KeyCode::Char(letter)), Action::Nothing));
    }

    fn names(state: &State) -> Vec<&str> {
        (0..state.length()).filter_map(|at| state.name(at)).map(Name::as_str).collect()
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn the_order_changes_by_keys_and_the_bar_stays_on_its_name() {
        let mut state = state(vec![held("a", 5, 9), held("b", 50, 0), held("c", 7, 3)]);
        assert_eq!(names(&state), ["b", "c", "a"]);
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Down);
        assert_eq!(state.selected(), 2);
        press(&mut state, KeyCode::Char('s'));
        assert_eq!((names(&state), state.selected()), (vec!["a", "c", "b"], 0), "by waiting");
        press(&mut state, KeyCode::Char('r'));
        assert_eq!(names(&state), ["b", "c", "a"]);
        press(&mut state, KeyCode::End);
        see(&mut state, vec![held("b", 51, 0), held("c", 8, 3)], 2);
        assert_eq!((names(&state), state.selected()), (vec!["b", "c"], 1), "its name is gone");
    }

    #[test]
    fn a_filter_is_typed_and_taken_away() {
        let mut state = state(vec![held("billing/1", 5, 9), held("other", 50, 0)]);
        press(&mut state, KeyCode::Char('/'));
        type_in(&mut state, "BILLq");
        assert_eq!(names(&state), [""; 0], "a letter is a letter: nothing quits");
        press(&mut state, KeyCode::Backspace);
        assert_eq!(names(&state), ["billing/1"]);
        press(&mut state, KeyCode::Enter);
        see(&mut state, vec![held("billing/2", 5, 9), held("other", 50, 0)], 2);
        assert_eq!(names(&state), ["billing/2"], "it stays");
        press(&mut state, KeyCode::Esc);
        assert_eq!(names(&state), ["other", "billing/2"]);
        press(&mut state, KeyCode::Char('/'));
        type_in(&mut state, "backup.SH");
        assert_eq!(names(&state).len(), 2, "a holder has it");
    }

    #[test]
    fn rows_are_turned_over_as_pages() {
        let mut state =
            state((0..25).map(|number| held(&format!("n{number:02}"), 100 - number, 0)).collect());
        state.height = 10;
        for (code, selected, shown) in [
            (KeyCode::PageDown, 10, 10..20),
            (KeyCode::Down, 11, 10..20),
            (KeyCode::End, 24, 20..25),
            (KeyCode::Down, 24, 20..25),
            (KeyCode::PageUp, 14, 10..20),
            (KeyCode::Char('g'), 0, 0..10),
            (KeyCode::Up, 0, 0..10),
        ] {
            press(&mut state, code);
            assert_eq!((state.selected(), state.shown()), (selected, shown), "{code:?}");
        }
        state.height = 0;
        assert_eq!(state.shown().len(), 1, "whatever the terminal says");
    }

    #[test]
    fn a_lock_is_freed_after_a_yes_and_only_as_it_is_now() {
        let mut state = state(vec![held("x", 5, 9)]);
        assert_eq!(press(&mut state, KeyCode::Char('f')), Action::Look(name("x")));
        assert!(state.question.is_none(), "the survey may be old");
        let (_, view) = held("x", 60, 9);
        state.see_lock(&name("other"), None, Instant::from_nanos(0));
        state.see_lock(&name("x"), view.ok(), Instant::from_nanos(0));
        let asked = state.question.clone().expect("a question");
        assert!(
            asked.text.contains("for 1m 0s") && asked.text.contains("free in 30.0s at the latest"),
            "{}",
            asked.text
        );
        for code in [KeyCode::Enter, KeyCode::Char('n'), KeyCode::Esc, KeyCode::Char('f')] {
            state.question = Some(asked.clone());
            assert_eq!(press(&mut state, code), Action::Nothing, "{code:?}");
            assert!(state.question.is_none() && state.message.is_some());
        }
        state.question = Some(asked);
        assert_eq!(press(&mut state, KeyCode::Char('y')), Action::Break(name("x"), Token::new(1060)));
        assert_eq!(press(&mut state, KeyCode::Char('y')), Action::Nothing, "once");
    }

    #[test]
    fn what_nobody_holds_cannot_be_freed() {
        let mut state = state(vec![held("x", 5, 9)]);
        press(&mut state, KeyCode::Enter);
        let mut asked = |view: Option<View>, code: KeyCode| {
            state.see_lock(&name("x"), view, Instant::from_nanos(0));
            press(&mut state, code);
            let action = press(&mut state, KeyCode::Char('f'));
            (action, state.question.take().map(|question| question.token), state.message.take())
        };
        assert_eq!(asked(None, KeyCode::Home), (Action::Nothing, None, Some("nobody holds it".to_owned())));
        let mut view = held("x", 5, 1).1.expect("a view");
        view.holds.push(hold(9, 9));
        view.waiters.push(tenure::WaiterView::new(tenure::ClaimId::new(8), hold(1, 1).label, 1));
        let (_, token, _) = asked(Some(view.clone()), KeyCode::Down);
        assert_eq!(token, Some(Token::new(1009)), "of several the selected one");
        let (_, token, message) = asked(Some(view.clone()), KeyCode::End);
        assert!(token.is_none() && message.is_some_and(|text| text.ends_with(" waits, and holds nothing")));
        view.holds[0].claim = None;
        let (_, token, message) = asked(Some(view), KeyCode::Home);
        assert!(token.is_none() && message.is_some_and(|text| text.contains("only `tenure release --now`")));
    }

    #[test]
    fn keys_lead_to_pages_and_back() {
        let mut state = state(vec![held("x", 5, 9)]);
        press(&mut state, KeyCode::Tab);
        assert_eq!((&state.page, state.length()), (&Page::Queues, 0));
        assert_eq!(press(&mut state, KeyCode::Enter), Action::Nothing, "there is none");
        press(&mut state, KeyCode::Char('1'));
        assert_eq!(press(&mut state, KeyCode::Enter), Action::Look(name("x")));
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Survey);
        assert_eq!(state.page, Page::Locks);
        press(&mut state, KeyCode::Char('?'));
        assert!(state.shows_keys);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Nothing, "it takes the keys away");
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit(0));
        let control = |state: &mut State, letter| {
            state.key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL))
        };
        assert_eq!(control(&mut state, 'c'), Action::Quit(130));
        assert_eq!(control(&mut state, 'z'), Action::Stop);
        press(&mut state, KeyCode::Char('/'));
        assert_eq!(control(&mut state, 'c'), Action::Quit(130), "while it is typed, too");
    }

    #[test]
    fn grants_are_counted_from_one_look_to_the_next() {
        let mut state = state(vec![held("a", 5, 0)]);
        assert!(state.seen.as_ref().is_some_and(|seen| seen.changes.is_none()));
        see(&mut state, vec![held("a", 5, 0), held("b", 1, 0), held("c", 1, 0)], 4);
        let changes = state.seen.as_ref().and_then(|seen| seen.changes).expect("a second look");
        assert_eq!((changes.grants, changes.rate(changes.grants)), (2, 0.5));
    }
}
