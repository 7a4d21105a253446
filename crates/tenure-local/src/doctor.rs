//! What `tenure doctor` says about the engine.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::fs::{fstat, fstatfs, fstatvfs, statfs};
use tenure_core::clock::Timestamp;
use tenure_core::engine::finding::{Finding, Severity, clock_difference};

use crate::client::liveness;
use crate::error::process_state;
use crate::queues::place;
use crate::store::Store;

/// Less free space than this is worth a warning.
const FREE_BYTES_WARNING: u64 = 16 << 20;
/// More of the store's largest size than this in use is worth a warning.
const USED_PERCENT_WARNING: u64 = 80;
/// A smaller difference between the store's time and the time of day is none.
const CLOCK_STEADY: Duration = Duration::from_secs(1);
/// A larger difference between the store's time and the time of day is worth a warning.
const CLOCK_WARNING: Duration = Duration::from_secs(60);

/// File systems by their number, and whether processes of other machines can be in the same directory, or what
/// else makes the locks and maps on them doubtful.
const FILE_SYSTEMS: [(i64, &str, Severity); 17] = [
    (0x0102_1994, "tmpfs", Severity::Good),
    (0xEF53, "ext4", Severity::Good),
    (0x5846_5342, "xfs", Severity::Good),
    (0x9123_683E, "btrfs", Severity::Good),
    (0x794c_7630, "overlayfs", Severity::Good),
    (0x2FC1_2FC1, "zfs", Severity::Good),
    (0xF2F5_2010, "f2fs", Severity::Good),
    (0x6969, "nfs", Severity::Bad),
    (0x517B, "smb", Severity::Bad),
    (0xFF53_4D42, "cifs", Severity::Bad),
    (0xFE53_4D42, "smb2", Severity::Bad),
    (0x00C3_6400, "ceph", Severity::Bad),
    (0x5346_414F, "afs", Severity::Bad),
    (0x0102_1997, "9p", Severity::Bad),
    (0x0BD0_0BD0, "lustre", Severity::Bad),
    (0x4750_4653, "gpfs", Severity::Bad),
    (0x6573_5546, "fuse", Severity::Warning),
];

/// Looks at the store, outside of it first and then inside.
pub(crate) fn check(store: &Store) -> Vec<Finding> {
    let mut findings = vec![place(store)];
    findings.extend(file_system(store));
    findings.push(sharers(store));
    findings.push(namespaces());
    findings.push(clients(store));
    findings.push(queues(store));
    match store.read(|transaction| Ok((transaction.now(), transaction.used_bytes()))) {
        Ok((now, used)) => {
            findings.push(size(store, used));
            findings.push(clock(now, store.clock.time_of_day()));
        }
        Err(fault) => {
            let error = fault.to_error("look", &store.directory.room.path);
            findings.push(Finding::bad("store", error.to_string()).hint_of(&error));
        }
    }
    findings
}

impl Store {
    fn named(&self) -> &'static str {
        if self.directory.is_named { "named" } else { "default" }
    }
}

fn place(store: &Store) -> Finding {
    let path = store.directory.place.display();
    let mode = fstat(store.directory.place_fd()).map(|stat| stat.st_mode & 0o7777).unwrap_or_default();
    let found = format!("{path} ({}), mode {mode:o}", store.named());
    if mode & 0o022 != 0 {
        return Finding::bad("directory", found)
            .hint(format!("others may write to it: run `chmod 700 {path}`"));
    }
    let finding = Finding::good("directory", found);
    if store.directory.is_named || !store.directory.place.starts_with("/tmp") {
        return finding;
    }
    let uid = rustix::process::geteuid().as_raw();
    finding.hint(format!(
        "after a restart another user could make it first, and keep this one out: with a line \
         `d /run/tenure-{uid} 0700 {uid} -` in /etc/tmpfiles.d nobody can"
    ))
}

/// The clients that use the same store, and those that only seem to.
fn sharers(store: &Store) -> Finding {
    let place = &store.directory.place;
    let uid = rustix::process::geteuid().as_raw();
    let others = if uid == 0 { "other users" } else { "root and other users" };
    let found = format!("processes of user {uid} on this machine; {others} have stores of their own");
    let runtime = std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_default();
    let hint = if place.starts_with("/tmp") && has_private_tmp() {
        "this process has a /tmp that others do not see (`PrivateTmp=`): name a directory, or have one made in /run by \
         tmpfiles.d"
    } else if std::env::split_paths(&runtime).any(|path| path == *place) {
        "systemd removes it when this unit stops, under all others who use it (`RuntimeDirectory=`): have it made by \
         tmpfiles.d instead"
    } else {
        return Finding::good("shared by", found);
    };
    Finding::warning("shared by", found).hint(hint)
}

/// Whether systemd has given this process a `/tmp` of its own.
fn has_private_tmp() -> bool {
    // `36 35 98:0 /tmp/systemd-private-<boot>-<unit>/tmp /tmp rw - ext4 /dev/root rw`
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    mounts.any(|mount| matches!(mount[..], [_, _, _, root, "/tmp", ..] if root.contains("/systemd-private-")))
}

fn file_system(store: &Store) -> Vec<Finding> {
    let directory = &store.directory;
    let mut findings = Vec::new();
    if let Ok(stat) = fstatfs(directory.place_fd()) {
        let number = stat.f_type;
        let known = FILE_SYSTEMS.iter().find(|(known, _, _)| *known == number);
        let (name, severity) = known
            .map_or((format!("{number:#x}"), Severity::Good), |(_, name, severity)| {
                ((*name).to_owned(), *severity)
            });
        findings.push(Finding::new(severity, "file system", name).hint(match severity {
            Severity::Good => "",
            Severity::Warning => "make sure that only this machine uses the directory, or name another",
            Severity::Bad => "name a directory on a local disk or tmpfs, or use an engine with a server",
        }));
    }
    if let Ok(stat) = fstatvfs(directory.place_fd()) {
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let found = format!("{} MiB free", free >> 20);
        findings.push(if free >= FREE_BYTES_WARNING {
            Finding::good("free space", found)
        } else {
            Finding::warning("free space", found)
                .hint(format!("free some space below {}", directory.place.display()))
        });
    }
    findings
}

/// Looks at the store of the queues from outside: the doctor makes none where there was none.
fn queues(store: &Store) -> Finding {
    let path = match place::find(&store.directory) {
        Ok((path, _)) => path,
        Err(error) => return Finding::warning("queues", error.to_string()).hint_of(&error),
    };
    let text = path.display();
    let Ok(data) = std::fs::metadata(path.join("data.mdb")) else {
        return Finding::good("queues", format!("none yet; they will be in {text}"));
    };
    let number = statfs(&path).map(|stat| stat.f_type).unwrap_or_default();
    let known = FILE_SYSTEMS.iter().find(|(known, _, _)| *known == number);
    let (name, severity) = known.map_or(("disk", Severity::Good), |(_, name, severity)| (*name, *severity));
    let (used, most) = (data.blocks() * 512, data.len());
    let found = format!("{text} ({name}), {} KiB of at most {} KiB in use", used >> 10, most >> 10);
    let (severity, hint) = if name == "tmpfs" {
        (Severity::Warning, "what is queued is lost when the machine restarts: name a directory on a disk")
    } else if severity != Severity::Good {
        (severity, "name a directory on a local disk, or use an engine with a server")
    } else if used.saturating_mul(100) >= most.saturating_mul(USED_PERCENT_WARNING) {
        (Severity::Warning, "let consumers take what is in line, or purge what nobody needs")
    } else {
        return Finding::good("queues", found);
    };
    Finding::new(severity, "queues", found).hint(hint)
}

fn namespaces() -> Finding {
    let read = |path: &str| {
        std::fs::read_link(path).map_or_else(|_| "unknown".to_owned(), |link| link.display().to_string())
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let found =
        format!("boot {}, {}, {}", boot.trim(), read("/proc/self/ns/pid"), read("/proc/self/ns/time"));
    Finding::good("scope", found)
}

fn clients(store: &Store) -> Finding {
    let mut alive = 0;
    let mut stopped = Vec::new();
    for client in liveness::clients(&store.directory) {
        let Ok(Some(pids)) = liveness::pids(&store.directory, client) else { continue };
        alive += 1;
        stopped.extend(pids.into_iter().filter(|pid| matches!(process_state(*pid), Some((_, 'T' | 't')))));
    }
    stopped.sort_unstable();
    stopped.dedup();
    let found = format!("{alive} connected");
    if stopped.is_empty() {
        return Finding::good("clients", found);
    }
    let pids: Vec<_> = stopped.iter().map(u32::to_string).collect();
    Finding::warning("clients", format!("{found}, of stopped processes: {}", pids.join(", ")))
        .hint(format!("what they hold ends after its ttl; `kill -CONT {}` continues them", pids.join(" ")))
}

fn size(store: &Store, used: u64) -> Finding {
    let most = store.map_bytes();
    let found = format!("{} KiB of at most {} KiB in use", used >> 10, most >> 10);
    if used.saturating_mul(100) < most.saturating_mul(USED_PERCENT_WARNING) {
        return Finding::good("store", found);
    }
    Finding::warning("store", found).hint("release what is not needed; `tenure status` lists it")
}

fn clock(now: Timestamp, time_of_day: Timestamp) -> Finding {
    let (difference, which) = clock_difference(now, time_of_day);
    let found = match difference {
        difference if difference < CLOCK_STEADY => "steady".to_owned(),
        difference => format!("{difference:.1?} {which} the time of day"),
    };
    if difference < CLOCK_WARNING {
        return Finding::good("clock", found);
    }
    Finding::warning("clock", found).hint(
        "the time of day was set since the first client connected; nothing that is held is affected, but check that it is right \
         before the next reboot",
    )
}
