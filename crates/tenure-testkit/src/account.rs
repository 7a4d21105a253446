//! Who a server runs as.

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::geteuid;

/// The account of a server that refuses to run as root: one that its package has made, if the tests run as root;
/// else that of the tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account(Option<&'static str>);

impl Account {
    /// The account, which is named as its group is.
    pub(crate) fn unprivileged(name: &'static str) -> Account {
        Account(geteuid().is_root().then_some(name))
    }

    /// A call of a program as this account. The process that is started becomes the program, so that its id is
    /// the server's: `runuser` would stay before it.
    pub(crate) fn command(self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        let Some(name) = self.0 else { return Command::new(program) };
        let mut command = Command::new("setpriv");
        command.args(["--reuid", name, "--regid", name, "--init-groups", "--"]).arg(program);
        command
    }

    /// Gives it a file or directory.
    pub(crate) fn give(self, path: &Path) {
        if let Some(name) = self.0 {
            run(Command::new("chown").arg(format!("{name}:{name}")).arg(path));
        }
    }
}

/// Runs a program that prepares something to its end.
///
/// # Panics
/// If it fails: with what it said.
pub(crate) fn run(command: &mut Command) {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
}

/// Where a program of a server is: Debian keeps it from the search path of those who are not root.
pub(crate) fn server_program(name: &str) -> std::path::PathBuf {
    let usual = Path::new("/usr/sbin").join(name);
    if usual.exists() { usual } else { name.into() }
}
