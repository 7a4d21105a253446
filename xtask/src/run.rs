//! One invocation of a chore as a list of steps: progress and times on stderr, and for each step that
//! fails the command that repeats it. A failed step does not end the chore: one run reports all that is wrong.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output};
use std::time::{Duration, Instant};

/// What a part of a chore gives, or a text for the user that fits after "error: ".
pub(crate) type Outcome<T> = Result<T, String>;

/// What is compiled, and with which features. Who compiles one package alone, or with others, compiles most of what it depends on anew.
pub(crate) const WORKSPACE: &str = "--workspace --features tenure-cli/otlp";

/// The steps of one invocation.
pub(crate) struct Run {
    root: PathBuf,
    started_at: Instant,
    steps: Vec<Step>,
    /// What is printed after all else.
    conclusions: Vec<String>,
    /// What would make the next build faster is left out: it makes this one slower.
    builds_once: bool,
}

/// A step that has ended.
struct Step {
    name: String,
    took: Duration,
    /// The command that repeats the step, if it failed.
    repeat: Option<String>,
}

/// A step that is under way: [`Run::wait`] ends it.
#[must_use = "it is of no step before it is waited for"]
pub(crate) struct Running {
    name: String,
    shown: String,
    started_at: Instant,
    child: io::Result<Child>,
}

impl Running {
    /// Starts a command as a step, beside what comes next. Its output goes to the terminal.
    pub(crate) fn start(name: &str, command: &mut Command) -> Running {
        let shown = show(command);
        eprintln!("xtask: {name}: {shown}");
        let started_at = now();
        Running { name: name.to_owned(), shown, started_at, child: command.spawn() }
    }
}

impl Run {
    /// Starts an invocation in the root of the workspace.
    pub(crate) fn new() -> Self {
        let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&own).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf);
        Self { root, started_at: now(), steps: Vec::new(), conclusions: Vec::new(), builds_once: false }
    }

    /// The root of the workspace.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where cargo puts what it makes.
    pub(crate) fn target(&self) -> Outcome<PathBuf> {
        let metadata = output(&mut self.cargo("metadata --format-version 1 --no-deps --offline"))?;
        let (_, rest) =
            metadata.split_once("\"target_directory\":\"").ok_or("cargo metadata names no target")?;
        Ok(rest.split('"').next().unwrap_or_default().into())
    }

    /// A command of cargo, in the root of the workspace.
    pub(crate) fn cargo(&self, arguments: &str) -> Command {
        let mut command = self.program("cargo");
        command.args(arguments.split_whitespace());
        self.as_built(&mut command);
        command
    }

    /// A command of cargo that gives way to whatever else wants a processor.
    pub(crate) fn nice_cargo(&self, arguments: &str) -> Command {
        let mut command = self.program("nice");
        command.args(["-n", "19", "cargo"]).args(arguments.split_whitespace());
        self.as_built(&mut command);
        command
    }

    fn as_built(&self, command: &mut Command) {
        if self.builds_once {
            command.env("CARGO_INCREMENTAL", "0");
        }
    }

    /// Says that nobody waits for a second build.
    pub(crate) fn build_once(&mut self) {
        self.builds_once = true;
    }

    /// A program, in the root of the workspace.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.current_dir(&self.root);
        command
    }

    /// Runs a command as a step. Its output goes to the terminal. Tells whether it succeeded.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) -> bool {
        let running = Running::start(name, command);
        self.wait(running)
    }

    /// Waits for a step that was started beside others. Tells whether it succeeded.
    pub(crate) fn wait(&mut self, running: Running) -> bool {
        let Running { name, shown, started_at, child } = running;
        let passed = match child.and_then(|mut child| child.wait()) {
            Ok(status) if status.success() => true,
            Ok(status) => {
                eprintln!("xtask: {name}: {status}");
                false
            }
            Err(error) => {
                eprintln!("xtask: {name}: cannot start: {error}");
                false
            }
        };
        self.end(&name, started_at, (!passed).then_some(shown))
    }

    /// Runs a command as a step that may fail, because the caller has another way.
    pub(crate) fn tries(&mut self, name: &str, command: &mut Command) -> bool {
        let passed = self.command(name, command);
        if let Some(step) = self.steps.last_mut() {
            step.repeat = None;
        }
        passed
    }

    /// Compiles the programs that tests in other languages start, as the tests have them: with an example among them cargo takes the features that
    /// tests give to what they depend on. Tells whether it could.
    pub(crate) fn programs(&mut self) -> bool {
        self.programs_and("programs of the tests", "")
    }

    /// The same, and with it what else cargo is told to build.
    pub(crate) fn programs_and(&mut self, name: &str, more: &str) -> bool {
        let which = "--bin tenure --example stores --example thin_clients";
        let mut build = self.cargo(&format!("build --profile test {WORKSPACE} {which} {more}"));
        self.command(name, &mut build)
    }

    /// Runs a check of xtask itself as a step; its `Err` is printed. Tells whether it succeeded.
    pub(crate) fn check(
        &mut self,
        name: &str,
        repeat: &str,
        check: impl FnOnce(&Path) -> Outcome<()>,
    ) -> bool {
        eprintln!("xtask: {name}");
        let started_at = now();
        let passed = check(&self.root).map_err(|text| eprintln!("{text}")).is_ok();
        self.end(name, started_at, (!passed).then(|| repeat.to_owned()))
    }

    fn end(&mut self, name: &str, started_at: Instant, repeat: Option<String>) -> bool {
        let took = started_at.elapsed();
        let passed = repeat.is_none();
        let word = if passed { "passed in" } else { "FAILED after" };
        eprintln!("xtask: {name}: {word} {:.1} s", took.as_secs_f64());
        self.steps.push(Step { name: name.to_owned(), took, repeat });
        passed
    }

    /// Keeps what is printed after all else, where a log that is cut still has it.
    pub(crate) fn conclude(&mut self, text: String) {
        self.conclusions.push(text);
    }

    /// Whether every step so far passed.
    pub(crate) fn has_passed(&self) -> bool {
        self.steps.iter().all(|step| step.repeat.is_none())
    }

    /// Prints the times and the failures, and gives the exit code.
    pub(crate) fn finish(self) -> ExitCode {
        if self.steps.len() > 1 {
            eprintln!();
            for step in &self.steps {
                let word = if step.repeat.is_none() { "passed" } else { "FAILED" };
                eprintln!("{:>8.1} s  {word}  {}", step.took.as_secs_f64(), step.name);
            }
            eprintln!("{:>8.1} s  in all", self.started_at.elapsed().as_secs_f64());
        }
        for step in &self.steps {
            if let Some(repeat) = &step.repeat {
                eprintln!("\nfailed: {}\nrepeat: {repeat}", step.name);
            }
        }
        for conclusion in &self.conclusions {
            eprintln!("\n{conclusion}");
        }
        if self.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The output of a command that only answers a question, or why there is none.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    Ok(String::from_utf8_lossy(&answer(command)?.stdout).into_owned())
}

/// What a command prints on stdout and then on stderr, where nginx puts its version.
pub(crate) fn printed(command: &mut Command) -> Outcome<String> {
    let answer = answer(command)?;
    Ok([answer.stdout, answer.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat())
}

fn answer(command: &mut Command) -> Outcome<Output> {
    let answer = command.output().map_err(|error| format!("cannot start {}: {error}", show(command)))?;
    if answer.status.success() {
        return Ok(answer);
    }
    let said = String::from_utf8_lossy(&answer.stderr);
    Err(format!("{} failed ({}): {}", show(command), answer.status, said.trim()))
}

/// A command as a user would type it, with the environment that was set for it.
fn show(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), quote(&value?.to_string_lossy())))
    });
    let program = Path::new(command.get_program()).to_string_lossy().into_owned();
    let words = command.get_args().map(|word| quote(&word.to_string_lossy()));
    set.chain([program]).chain(words).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@+%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[allow(clippy::disallowed_methods, reason = "xtask measures how long its steps take; no test depends on it")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_is_typed() {
        let mut command = Command::new("cargo");
        command.env("RUSTDOCFLAGS", "-D warnings").args(["doc", "-E", "it's"]);
        assert_eq!(show(&command), r"RUSTDOCFLAGS='-D warnings' cargo doc -E 'it'\''s'");
    }

    #[test]
    fn a_failed_step_is_remembered_and_the_next_one_still_runs() {
        let mut run = Run::new();
        assert!(!run.check("one", "repeat one", |_| Err("no".to_owned())));
        assert!(run.check("two", "repeat two", |_| Ok(())));
        assert!(!run.has_passed());
        assert_eq!(run.steps.len(), 2);
    }

    #[test]
    fn a_program_that_does_not_exist_is_a_failed_step() {
        let mut run = Run::new();
        let mut command = run.program("tenure-no-such-program");
        assert!(!run.command("missing", &mut command));
    }
}
