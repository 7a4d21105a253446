//! The gate: the one lock in front of the store, for all threads of all processes.
//!
//! It is a robust, process-shared pthread mutex in a small mapped file. LMDB has a writer mutex of its own, but
//! waits for it without limit; so the environment is opened without LMDB's locks, and the gate takes their
//! place: no thread touches the environment outside of it, readers included. A process that is *killed* inside
//! leaves the gate to the next one (the kernel marks the mutex; the unfinished transaction was never reachable,
//! so there is nothing to repair). A process that is *stopped* inside keeps it, so a wait ends after
//! [`WAIT_MAX`] and says whose fault it is: the page holds the pid of the process inside.
//!
//! Rejected: `flock` (a system call on the way in and out, and no fairness at all), a futex of our own (the
//! kernel's list of robust futexes belongs to the C library), blocking SIGTSTP inside (in a process with several
//! threads another one takes the signal and the whole process stops).
#![allow(unsafe_code, reason = "a pthread mutex in shared memory")]

use std::cell::UnsafeCell;
use std::io;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use tenure_core::clock::Clock;

/// How long to wait for the gate. A transaction takes microseconds, a batch under a millisecond; a process that
/// stays inside for this long is stopped.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long one wait in the kernel lasts. The wait is measured by the time of day, which can step, so the total is
/// counted on the clock that cannot.
const WAIT_SLICE: Duration = Duration::from_millis(200);
/// How often the gate is tried before the kernel is asked to wait: about one transaction's length.
const SPINS_MAX: u32 = 200;
/// The size of the file.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// What the page's mutex depends on. Another C library lays it out differently.
pub(crate) fn layout() -> String {
    let c_library = if cfg!(target_env = "gnu") {
        "gnu"
    } else if cfg!(target_env = "musl") {
        "musl"
    } else {
        "other"
    };
    format!("{}-{c_library}-{}", std::env::consts::ARCH, size_of::<Page>())
}

#[repr(C)]
struct Page {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// The process inside, 0 if none.
    holder: AtomicU32,
    /// Whether there may be observers. If it is zero, there are none to read.
    observers: AtomicU32,
}

/// The mapped page.
pub(crate) struct Gate {
    page: NonNull<Page>,
    pid: u32,
    /// Its lock says that the store is open here.
    _file: OwnedFd,
}

// SAFETY: the page is shared memory made for it: a process-shared mutex and atomics.
unsafe impl Send for Gate {}
// SAFETY: as above.
unsafe impl Sync for Gate {}

/// Why the gate was not passed.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// This process (0 if it is not known) has been inside for [`WAIT_MAX`].
    By(u32),
    /// The mutex does not work.
    Broken(io::Error),
}

/// The right to be inside. It is given back on the thread that got it.
pub(crate) struct GateGuard<'a> {
    gate: &'a Gate,
    /// A pthread mutex must be unlocked by the thread that locked it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Gate {
    /// Makes a fresh page in an empty file. No other process may have the file mapped.
    pub(crate) fn create(file: BorrowedFd<'_>) -> io::Result<()> {
        // Written, not only made long: where a full file system has no room for the page, to touch it would kill the
        // process.
        rustix::io::write(file, &[0; PAGE_BYTES as usize])?;
        if rustix::fs::fstat(file)?.st_size != PAGE_BYTES as i64 {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        let page = map(file)?;
        // SAFETY: the attribute is initialized before it is used and destroyed after; the mutex lies in a
        // writable page that is large enough and aligned.
        let code = unsafe {
            let mut attributes = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            let code = first_error(&[
                libc::pthread_mutexattr_init(&raw mut attributes),
                libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED),
                libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST),
                libc::pthread_mutex_init(page.as_ref().mutex.get(), &raw const attributes),
            ]);
            libc::pthread_mutexattr_destroy(&raw mut attributes);
            code
        };
        unmap(page);
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
    }

    /// Maps a page that [`Gate::create`] made. The caller has checked the file's length and layout.
    pub(crate) fn open(file: OwnedFd) -> io::Result<Gate> {
        Ok(Gate { page: map(file.as_fd())?, pid: std::process::id(), _file: file })
    }

    fn page(&self) -> &Page {
        // SAFETY: the page is mapped for as long as the gate lives, and only its atomics change under us; the
        // mutex is in a cell.
        unsafe { self.page.as_ref() }
    }

    /// Waits until no other thread is inside, and goes in.
    pub(crate) fn enter(&self, clock: &dyn Clock) -> Result<GateGuard<'_>, Blocked> {
        let mut code = self.try_lock();
        for _ in 0..SPINS_MAX {
            if code != libc::EBUSY {
                break;
            }
            std::hint::spin_loop();
            if self.page().holder.load(Ordering::Relaxed) == 0 {
                code = self.try_lock();
            }
        }
        if code == libc::EBUSY {
            code = self.wait(clock);
        }
        match code {
            0 => {}
            libc::EOWNERDEAD => {
                // SAFETY: this thread has just locked the mutex, and what it protects needs no repair.
                let code = unsafe { libc::pthread_mutex_consistent(self.page().mutex.get()) };
                debug_assert_eq!(code, 0, "a mutex whose holder died can be made consistent");
            }
            libc::ETIMEDOUT => return Err(Blocked::By(self.page().holder.load(Ordering::Relaxed))),
            code => return Err(Blocked::Broken(io::Error::from_raw_os_error(code))),
        }
        self.page().holder.store(self.pid, Ordering::Relaxed);
        Ok(GateGuard { gate: self, _not_send: std::marker::PhantomData })
    }

    fn try_lock(&self) -> i32 {
        // SAFETY: the mutex was initialized before the file was named complete.
        unsafe { libc::pthread_mutex_trylock(self.page().mutex.get()) }
    }

    fn wait(&self, clock: &dyn Clock) -> i32 {
        let until = clock.now() + WAIT_MAX;
        loop {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            let nanos = now.tv_nsec + i64::from(WAIT_SLICE.subsec_nanos());
            // SAFETY: zero is a valid time; the fields are set by name because some targets have more of them.
            let mut at = unsafe { std::mem::zeroed::<libc::timespec>() };
            at.tv_sec = now.tv_sec + nanos / 1_000_000_000;
            at.tv_nsec = nanos % 1_000_000_000;
            // SAFETY: the mutex is initialized and the time is valid.
            let code = unsafe { libc::pthread_mutex_timedlock(self.page().mutex.get(), &raw const at) };
            if code != libc::ETIMEDOUT || clock.now() >= until {
                return code;
            }
        }
    }

    /// Notes, before a commit, that there will be observers; or that none is left.
    pub(crate) fn expect_observers(&self, _inside: &GateGuard<'_>, are_there: bool) {
        self.page().observers.store(u32::from(are_there), Ordering::Relaxed);
    }

    /// Whether there may be observers of anything.
    pub(crate) fn has_observers(&self, _inside: &GateGuard<'_>) -> bool {
        self.page().observers.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        unmap(self.page);
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.gate.page().holder.store(0, Ordering::Relaxed);
        // SAFETY: this thread locked it.
        let code = unsafe { libc::pthread_mutex_unlock(self.gate.page().mutex.get()) };
        debug_assert_eq!(code, 0, "the thread that locked a mutex can unlock it");
    }
}

fn first_error(codes: &[i32]) -> i32 {
    codes.iter().copied().find(|code| *code != 0).unwrap_or(0)
}

fn map(file: BorrowedFd<'_>) -> io::Result<NonNull<Page>> {
    const { assert!(size_of::<Page>() <= PAGE_BYTES as usize) };
    // SAFETY: a new shared mapping at an address of the kernel's choice. The file has a page, which the caller
    // has checked, and nothing of tenure ever makes it shorter.
    let page = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            PAGE_BYTES as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )?
    };
    Ok(NonNull::new(page.cast()).expect("the kernel does not map at zero"))
}

fn unmap(page: NonNull<Page>) {
    // SAFETY: the page was mapped by `map` with this length, and the gate is going away.
    let unmapped = unsafe { rustix::mm::munmap(page.as_ptr().cast(), PAGE_BYTES as usize) };
    debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
}
