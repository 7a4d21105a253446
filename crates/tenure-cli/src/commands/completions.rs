//! `tenure completions` and `tenure man`: made from the flags, so that they cannot go stale.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use clap_complete::Shell;
use tenure::{Name, View};

use crate::arguments::ENVIRONMENT_HELP;
use crate::connect::connect_blocking;
use crate::exit::{self, Failure, Outcome};
use crate::output::data::write_data;

/// Write a completion script for a shell to stdout
#[derive(Debug, Args)]
#[command(
    override_usage = "tenure completions [OPTIONS] <SHELL>",
    after_help = "\
Commands and flags in every shell; in bash, zsh and fish also the names of locks that are held or waited for, as TENURE_ENGINE has them.

Examples:
  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  tenure completions zsh > \"${fpath[1]}/_tenure\"
  tenure completions fish > ~/.config/fish/completions/tenure.fish"
)]
pub(crate) struct Completions {
    /// The shell
    #[arg(required_unless_present = "names")]
    pub(crate) shell: Option<Shell>,
    /// What the scripts ask: which locks with this prefix are held or waited for
    #[arg(long, hide = true, value_name = "PREFIX")]
    pub(crate) names: Option<String>,
}

/// How many names a shell is told at most, and how long its user, who waits for the answer to a TAB, is kept.
const NAMES_MAX: usize = 100;
const NAMES_WAIT: Duration = Duration::from_secs(1);

/// The commands whose first word is the name of a lock.
const NAMED: [&str; 6] = ["run", "elect", "status", "watch", "release", "resize"];

/// Write a manual page to stdout, or all of them to a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure man run | man -l -                      read one
  tenure man --dir ~/.local/share/man/man1       install all: `man tenure-run`")]
pub(crate) struct Man {
    /// The command, as `run` or `queue push`; without it, the page of `tenure` itself
    pub(crate) command: Vec<String>,
    /// Write the pages of all commands into a directory, which is made if it is not there
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    pub(crate) dir: Option<PathBuf>,
}

/// Writes a completion script for the command line `tenure`, or the names that a script asks for.
pub(crate) fn completions(completions: &Completions, engine: &str, mut tenure: clap::Command) -> Outcome {
    if let Some(prefix) = &completions.names {
        return write_names(prefix.clone(), engine.to_owned());
    }
    let Some(shell) = completions.shell else { return Ok(0) };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tenure, "tenure", &mut script);
    write_data(&with_names(shell, &String::from_utf8_lossy(&script)))?;
    Ok(0)
}

/// Writes the names of locks that are in use. Whoever presses TAB wants no error in the middle of a line: whatever goes wrong, there
/// is no name.
fn write_names(prefix: String, engine: String) -> Outcome {
    let (sender, names) = mpsc::channel();
    // It is left behind if the engine is slow: this process ends.
    std::thread::spawn(move || {
        let views = connect_blocking(&engine).ok().and_then(|tenure| {
            let views = pollster::block_on(tenure.inspect_each(&prefix)).ok();
            pollster::block_on(tenure.close());
            views
        });
        // The receiver is gone when the time is over.
        sender.send(names_in_use(&views.unwrap_or_default())).ok();
    });
    write_data(&names.recv_timeout(NAMES_WAIT).unwrap_or_default())?;
    Ok(0)
}

fn names_in_use(views: &[(Name, tenure::Result<View>)]) -> String {
    let is_used = |view: &View| !view.holds.is_empty() || view.waiting > 0;
    let used = views.iter().filter(|(_, view)| view.as_ref().is_ok_and(is_used));
    used.take(NAMES_MAX).map(|(name, _)| format!("{name}\n")).collect()
}

/// Has a script ask for names where a command takes one. Elvish and PowerShell know flags and commands alone.
fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}{}", BASH_NAMES.replace("NAMED", &NAMED.join("|"))),
        Shell::Zsh => zsh_with_names(script),
        Shell::Fish => {
            let line = |command| {
                format!(
                    "complete -c tenure -n \"__fish_tenure_using_subcommand {command}\" -a '(__fish_tenure_names)'\n"
                )
            };
            format!("{script}{FISH_NAMES}{}", NAMED.map(line).concat())
        }
        _ => script.to_owned(),
    }
}

/// Bash ends words at `:` too, and completes the last of them: so the line is read anew, and what stands before the last `:` is cut off.
const BASH_NAMES: &str = r#"
_tenure_names() {
    _tenure "$@"
    local line="${COMP_LINE:0:COMP_POINT}" words command="" engine="" last="" word name
    [[ "$line" == *[[:space:]] ]] && line+="''"
    read -ra words <<< "$line"
    for word in "${words[@]:1:${#words[@]}-2}"; do
        case "$last,$word" in
            *,--) return ;;
            --engine,*) engine="$word" ;;
            *,--engine=*) engine="${word#*=}" ;;
            *,-*|-*,*) ;;
            *) command="${command:-$word}" ;;
        esac
        last="$word"
    done
    case "$command" in NAMED) ;; *) return ;; esac
    word="${words[-1]#"''"}"
    [[ "$word" == -* ]] && return
    while IFS= read -r name; do
        name="$(printf '%q' "$name")"
        COMPREPLY+=("${name#"${word%"${word##*:}"}"}")
    done < <("$1" ${engine:+--engine "$engine"} completions --names "$word" 2>/dev/null)
}
complete -F _tenure_names -o bashdefault -o default tenure
"#;

const FISH_NAMES: &str = r#"
function __fish_tenure_names
    tenure completions --names (commandline -ct) 2>/dev/null
end
"#;

const ZSH_NAMES: &str = r#"
_tenure_names() {
    local -a names
    names=("${(@f)$(tenure completions --names "$PREFIX" 2>/dev/null)}")
    compadd -Q -a names
}
"#;

/// Names stand where the flags' own text completes files.
fn zsh_with_names(script: &str) -> String {
    let mut command = "";
    let mut text = String::new();
    for line in script.lines() {
        // `(status)` begins what completes the flags of `tenure status`.
        if let Some(name) = line.trim().strip_prefix('(').and_then(|line| line.strip_suffix(')')) {
            command = name;
        }
        let is_name =
            NAMED.contains(&command) && (line.starts_with("':name ") || line.starts_with("'::name "));
        match line.rsplit_once(":_default'") {
            Some((start, end)) if is_name => text.push_str(&format!("{start}:_tenure_names'{end}\n")),
            _ => text.push_str(&format!("{line}\n")),
        }
        if line.starts_with("#compdef") {
            text.push_str(ZSH_NAMES);
        }
    }
    text
}

/// Writes a manual page of the command line `tenure`, or all.
pub(crate) fn man(man: &Man, mut tenure: clap::Command) -> Outcome {
    // Gives each command its whole name, `tenure-run`, and the flags that all have.
    tenure.build();
    if let Some(directory) = &man.dir {
        let failed = |error| Failure::system(&format!("write to {directory:?}"), error);
        fs::create_dir_all(directory).map_err(failed)?;
        return install(&tenure, &tenure, directory).map(|()| 0).map_err(failed);
    }
    let mut command = &tenure;
    for name in &man.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            Failure::new(exit::USAGE, format!("there is no command {:?}", man.command.join(" ")))
                .with_hint("see `tenure --help`")
        })?;
    }
    let page = page(command, &tenure).map_err(|error| Failure::system("write a manual page", error))?;
    write_data(&String::from_utf8_lossy(&page))?;
    Ok(0)
}

/// Writes the page of a command and those of its own.
fn install(command: &clap::Command, tenure: &clap::Command, directory: &Path) -> io::Result<()> {
    fs::write(directory.join(format!("{}.1", name(command))), page(command, tenure)?)?;
    let own = command.get_subcommands().filter(|own| own.get_name() != "help");
    own.into_iter().try_for_each(|own| install(own, tenure, directory))
}

/// The name of a command's page: `tenure-queue-push`.
fn name(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Makes a page. What `--help` says after the flags becomes sections of their own.
fn page(command: &clap::Command, tenure: &clap::Command) -> io::Result<Vec<u8>> {
    let version = tenure.get_version().unwrap_or_default();
    let man =
        clap_mangen::Man::new(command.clone()).source(format!("tenure {version}")).manual("User Commands");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for paragraph in after.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        // `Examples:`, and `Exit codes: that of CMD, or`.
        let (heading, text) = match paragraph.split_once(':') {
            Some((heading, text)) if heading.len() < 20 && text.contains('\n') => {
                (heading, text.trim_matches('\n'))
            }
            _ => ("NOTES", paragraph),
        };
        section(&mut page, heading, text)?;
    }
    if name(command) != name(tenure) {
        section(&mut page, "ENVIRONMENT", ENVIRONMENT_HELP.split_once('\n').unwrap_or_default().1)?;
        section(&mut page, "SEE ALSO", "  tenure(1)")?;
    }
    Ok(page)
}

/// Writes a section whose lines stay as they are.
fn section(page: &mut Vec<u8>, heading: &str, text: &str) -> io::Result<()> {
    writeln!(page, ".SH {}\n.nf", heading.to_uppercase())?;
    for line in text.lines() {
        // A backslash begins a command of roff, as a dot or a quote does at the start of a line.
        let line = line.strip_prefix("  ").unwrap_or(line).replace('\\', "\\e").replace('-', "\\-");
        writeln!(page, "\\&{line}")?;
    }
    writeln!(page, ".fi")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::held;

    // page: docs/command.md "at most 100, on the engine"
    #[test]
    fn a_hundred_names_are_offered() {
        let views: Vec<_> = (0..150).map(|number| held(&format!("n{number}"), 1, 0)).collect();
        assert_eq!(names_in_use(&views).lines().count(), 100);
        assert_eq!(NAMES_WAIT, Duration::from_secs(1));
    }
}
