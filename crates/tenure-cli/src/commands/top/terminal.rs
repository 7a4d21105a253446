//! The terminal of `tenure top`: taken over, and given back on each way out.
//!
//! Signals are blocked and read by a thread, as in `supervise/signals.rs`; so one that ends the command gives the terminal back first.
//! A panic of any thread does, too. What cannot be caught (`kill -9`) leaves the terminal as it is: `reset` helps.

use std::io::{self, Stdout, stdout};
use std::os::fd::OwnedFd;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Position, Rect};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use crate::sys::{SignalSet, is_ignored, raise, read_signal};

/// The signals that end the command, stop it, or tell it that it goes on. A new size is told by crossterm.
const CAUGHT: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::CONT];

/// The signals of this process.
pub(super) struct Signals(OwnedFd);

impl Signals {
    /// Begins to catch them. Threads that are started later do not get them.
    pub(super) fn catch() -> io::Result<Signals> {
        let caught: Vec<Signal> = CAUGHT.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        let caught = SignalSet::of(&caught);
        caught.block();
        Ok(Signals(caught.descriptor()?))
    }

    /// Waits for the next one.
    pub(super) fn next(&self) -> io::Result<i32> {
        loop {
            if let Some(signal) = read_signal(&self.0) {
                return Ok(signal);
            }
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The terminal, for as long as it is taken over.
pub(super) struct Screen(pub(super) Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal over.
    pub(super) fn take() -> io::Result<Screen> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
            // Nothing is held, and a screen that nobody serves any more helps nobody.
            std::process::exit(101);
        }));
        let screen = Terminal::new(CrosstermBackend::new(stdout())).map(Screen);
        take_over().and(screen)
    }

    /// Stops this process, with the terminal as it was before, and goes on when it is continued. The system ignores it where no shell
    /// could continue it.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        give_back();
        let stop = SignalSet::of(&[Signal::TSTP]);
        let before = stop.unblock();
        raise(Signal::TSTP);
        before.block_only();
        self.again()
    }

    /// Takes the terminal over once more: somebody else may have had it.
    pub(super) fn again(&mut self) -> io::Result<()> {
        // What is remembered of the terminal is put back first, so that it is remembered as it was.
        disable_raw_mode()?;
        take_over()?;
        // `clear` would ask the terminal where its cursor is, and wait for the thread that reads keys.
        let size = self.0.size()?;
        self.0.resize(Rect::from((Position::ORIGIN, size)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take_over() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)
}

/// Gives the terminal back. Where that fails there is no terminal any more.
fn give_back() {
    drop(execute!(stdout(), LeaveAlternateScreen, Show));
    drop(disable_raw_mode());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Says to a test that it runs on a terminal of tmux, and shall panic there.
    const PANICS: &str = "TENURE_TEST_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back_and_is_seen() {
        if std::env::var_os(PANICS).is_some() {
            let mut screen = Screen::take().expect("a terminal");
            // It hides the cursor.
            screen.0.draw(|_| {}).expect("a terminal");
            let thread = std::thread::spawn(|| panic!("a thread has failed"));
            // The panic ends the process.
            drop((thread.join(), screen));
            std::process::exit(0);
        }
        let directory = tenure_testkit::TestDirectory::new();
        let tmux = |arguments: &[&str]| {
            let mut command = Command::new("tmux");
            command
                .arg("-S")
                .arg(directory.path().join("tmux"))
                .args(["-f", "/dev/null", "-u"])
                .args(arguments);
            let output = command.output().expect("tmux: `cargo xtask setup` installs it");
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let own = std::env::current_exe().expect("a test");
        let test = "commands::top::terminal::tests::a_panic_gives_the_terminal_back_and_is_seen";
        let line =
            format!("{PANICS}=1 {} --exact {test} --nocapture; echo \"ended: $?\"; exec cat", own.display());
        tmux(&["new-session", "-d", "-x", "150", "-y", "24", &line]);
        let screen = tenure_testkit::wait_for("the end", || {
            Some(tmux(&["capture-pane", "-p"])).filter(|screen| screen.contains("ended: "))
        });
        let state = tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        tmux(&["kill-server"]);
        assert!(screen.contains("ended: 101") && screen.contains("a thread has failed"), "{screen}");
        assert_eq!(state.trim(), "0 1", "{screen}");
    }
}
