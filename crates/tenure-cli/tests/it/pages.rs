//! What the pages show is what happens: every block ```` ```console ```` of both READMEs and of `docs/` is run.
//!
//! A line after `$ ` is a command, `> ` continues it. One shell runs the commands of a page, one after the other, in
//! a directory of the page's own, with an engine of its own and with the programs of `tests/pages`. What a
//! command prints, on stdout and stderr together, must follow it. `[..]` stands for any text in a line, a line
//! `...` for any lines, and `? 75` for an exit code other than 0. `SNAPSHOTS=overwrite` writes the pages anew.
//!
//! Rejected: trycmd, which runs single programs. What a reader types has pipes, variables and background jobs.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process_group};
use snapbox::{Assert, Data};

use crate::world::{World, finish};

/// How many pages are run at once. All of them at once would keep the machine so busy that their commands talk in another order.
const AT_ONCE: usize = 6;

/// What the shell prints around an exit code. (An ASCII control character that nobody uses any more.)
const MARK: char = '\u{1e}';

/// A page, cut where commands are.
#[derive(Debug, Default)]
struct Page {
    /// The text before each command, with the command; the output that it shows is left out.
    before: Vec<String>,
    commands: Vec<String>,
    after: String,
}

impl Page {
    fn parse(text: &str) -> Page {
        let mut page = Page::default();
        // Inside a block: whether a command has come.
        let (mut is_console, mut has_command) = (false, false);
        let mut is_fenced = false;
        for line in text.split_inclusive('\n') {
            if line.starts_with("```") {
                is_console = !is_fenced && line.trim_end() == "```console";
                is_fenced = !is_fenced;
                has_command = false;
                page.after += line;
            } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) {
                has_command = true;
                page.before.push(std::mem::take(&mut page.after) + line);
                page.commands.push(command.to_owned());
            } else if let (true, Some(more)) = (has_command && page.after.is_empty(), line.strip_prefix("> "))
            {
                page.before.last_mut().expect("it has come").push_str(line);
                page.commands.last_mut().expect("it has come").push_str(more);
            } else if !has_command {
                page.after += line;
            }
        }
        page
    }

    /// The page with what the commands have printed.
    fn with(self, outputs: &[String]) -> String {
        assert_eq!(outputs.len(), self.commands.len(), "a command has ended the shell: {:?}", self.commands);
        let parts = self.before.iter().zip(outputs).flat_map(|(before, output)| [before, output]);
        parts.map(String::as_str).chain([self.after.as_str()]).collect()
    }
}

/// Runs the commands in a shell, and returns what each has printed.
fn outputs(world: &World, commands: &[String]) -> Vec<String> {
    let place = world.path("home");
    fs::create_dir(&place).expect("a directory");
    for program in fs::read_dir(pages_programs()).expect("the programs of the pages").flatten() {
        fs::copy(program.path(), place.join(program.file_name())).expect("a program of the pages");
    }
    let mut script = String::new();
    for (number, command) in commands.iter().enumerate() {
        let file = world.path(&format!("command-{number}"));
        fs::write(&file, command).expect("a file");
        script += &format!(". '{}'\nprintf '{MARK}%s{MARK}' $?\n", file.display());
    }
    let output = fs::File::create(world.path("output")).expect("a file");
    let mut shell = Command::new("bash");
    let tenure = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().expect("a program is in a directory");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([tenure.to_owned()].into_iter().chain(std::env::split_paths(&path)));
    shell.args(["-c", &script]).current_dir(&place).process_group(0);
    shell.env("PATH", path.expect("a path")).env("TENURE_ENGINE", world.engine()).env("COLUMNS", "100");
    shell.env("HOME", &place).env_remove("TENURE_LOG").env_remove("BASH_ENV").env("LC_ALL", "C.UTF-8");
    shell.stdin(Stdio::null()).stdout(output.try_clone().expect("a file")).stderr(output);
    let shell = shell.spawn().expect("bash");
    world.watch(shell.id());
    let group = Pid::from_child(&shell);
    finish(shell);
    // What the page has left running; there may be nothing.
    kill_process_group(group, Signal::KILL).ok();
    let text = fs::read(world.path("output")).expect("an output");
    let text = String::from_utf8_lossy(&text);
    let mut parts = text.split(MARK);
    let mut outputs = Vec::new();
    while let (Some(printed), Some(code)) = (parts.next(), parts.next()) {
        let end = if printed.is_empty() || printed.ends_with('\n') { "" } else { "\n" };
        // Where trycmd has it: before what was printed.
        let code = if code == "0" { String::new() } else { format!("? {code}\n") };
        outputs.push(format!("{code}{printed}{end}"));
    }
    outputs
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages_programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages")
}

/// All pages below a directory.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory of pages").flatten().map(|entry| entry.path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => pages(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// Compares a page with what its commands do; returns the difference, if there is one.
fn difference(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).expect("a page");
    let page = Page::parse(&text);
    if page.commands.is_empty() {
        return None;
    }
    let world = World::new();
    let outputs = outputs(&world, &page.commands);
    let name = path.display().to_string();
    // A backslash is no path here.
    let assert = Assert::new().action_env("SNAPSHOTS").normalize_paths(false);
    let compared = assert.try_eq(Some(&name), Data::text(page.with(&outputs)), Data::read_from(path, None));
    compared.err().map(|error| error.to_string())
}

/// The README in each language.
fn readmes() -> [PathBuf; 2] {
    ["README.md", "README.zh-CN.md"].map(|name| root().join(name))
}

#[test]
fn the_readmes_show_the_same_commands() {
    let [english, chinese] =
        readmes().map(|path| Page::parse(&fs::read_to_string(path).expect("a page")).commands);
    assert_eq!(english, chinese);
}

#[test]
fn the_pages_show_what_happens() {
    let pages: Vec<PathBuf> = [readmes().to_vec(), pages(&root().join("docs"))].concat();
    let (pages, differences) = (Mutex::new(pages.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = pages.lock().expect("no panic").next();
                    let Some(page) = next else { return };
                    differences.lock().expect("no panic").extend(difference(page));
                }
            });
        }
    });
    let differences = differences.into_inner().expect("no panic");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_page_that_shows_something_else_is_found() {
    let world = World::new();
    let page = |text: &str| {
        let path = world.path("page.md");
        fs::write(&path, text).expect("a file");
        difference(&path)
    };
    let right = "A page.\n\n```console\n$ X=5; echo one; echo $X >&2\none\n5\n$ printf a \\\n> b; false\n? 1\na\n\
                 $ echo $X $(date) [5]\n5 [..] [5]\n$ seq 9\n1\n...\n9\n```\n\n```sh\n$ no such\n```\n";
    assert_eq!(page(right), None);
    for (shown, other) in
        [("5\n$ printf", "6\n$ printf"), ("? 1\n", ""), ("...\n9", "...\n8"), ("one\n5", "5")]
    {
        let wrong = right.replace(shown, other);
        assert!(wrong != right && page(&wrong).is_some(), "{shown:?} as {other:?}");
    }
    assert_eq!(page("```rust\n$ echo no command\n```\n"), None);
}
