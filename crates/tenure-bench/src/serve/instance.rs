//! One `tenure serve`, and what it uses.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::Port;

use super::Answer;
use crate::run::command;

pub(super) struct Instance {
    child: Child,
    port: Port,
}

impl Instance {
    pub(super) fn start(url: &str) -> Answer<Instance> {
        let port = Port::free();
        let listen = format!("127.0.0.1:{}", port.number());
        let child = Command::new(command().map_err(|error| error.to_string())?)
            .args(["serve", "--listen", &listen])
            .env("TENURE_ENGINE", url)
            .env("TENURE_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let instance = Instance { child, port };
        let listens = || std::net::TcpStream::connect(instance.address()).ok();
        drop(tenure_testkit::wait_for("an instance", listens));
        Ok(instance)
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number()))
    }

    fn stat(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
    }

    /// A line of its status, in KiB there, in bytes.
    fn memory(&self, name: &str) -> u64 {
        let status = self.stat("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }

    /// Its resident memory, in bytes.
    pub(super) fn resident(&self) -> u64 {
        self.memory("VmRSS")
    }

    /// The most of it since [`forget_peak`](Instance::forget_peak).
    pub(super) fn peak(&self) -> u64 {
        self.memory("VmHWM")
    }

    pub(super) fn forget_peak(&self) -> Answer<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }

    /// Its processor time.
    pub(super) fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }

    pub(super) fn terminate(&self) -> Answer<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
        Ok(kill_process(pid, Signal::TERM)?)
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Answer<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }
}

/// The processor time of a process.
pub(super) fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks: u64 = fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    // Linux shows hundredths of a second.
    Duration::from_millis(ticks * 10)
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
