//! What must not live on in a forked child: the descriptors that say "this process lives".
//!
//! A child that runs another program closes them by itself (close-on-exec). One that only forks would keep its
//! parent's locks alive after the parent's death. So a handler, which the C library runs in every forked child,
//! closes them there. It may do nothing but close and store: other threads of the parent may have held any lock.
//!
//! A forked child cannot use its parent's clients: the thread that serves them does not exist there, and the
//! store would be open twice on one description. A flag makes every verb say so.
#![allow(unsafe_code, reason = "pthread_atfork, and closing by number in the child")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// Set in a forked child of a process that had clients.
static IS_FORKED: AtomicBool = AtomicBool::new(false);
/// The cells of all descriptors, as a list that only grows: one of a closed descriptor is used again.
static CELLS: AtomicPtr<Cell> = AtomicPtr::new(ptr::null_mut());

const EMPTY: i32 = -1;

struct Cell {
    fd: AtomicI32,
    next: *mut Cell,
}

/// Whether this process is a forked child of one that had clients.
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// A descriptor that is closed in forked children.
#[derive(Debug)]
pub(crate) struct ClosedOnFork {
    cell: &'static AtomicI32,
}

impl ClosedOnFork {
    /// Takes a descriptor.
    pub(crate) fn new(fd: OwnedFd) -> ClosedOnFork {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler does nothing but what a signal handler may do.
            let code = unsafe { libc::pthread_atfork(None, None, Some(close_all)) };
            assert_eq!(code, 0, "the C library has memory for one more handler");
        });
        let fd = fd.into_raw_fd();
        for cell in cells() {
            if cell.compare_exchange(EMPTY, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return ClosedOnFork { cell };
            }
        }
        let cell = Box::into_raw(Box::new(Cell { fd: AtomicI32::new(fd), next: ptr::null_mut() }));
        let mut first = CELLS.load(Ordering::Acquire);
        loop {
            // SAFETY: no other code knows the cell before it is in the list.
            unsafe { (*cell).next = first };
            match CELLS.compare_exchange(first, cell, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: cells are never freed.
                Ok(_) => return ClosedOnFork { cell: unsafe { &(*cell).fd } },
                Err(newer) => first = newer,
            }
        }
    }

    /// Lends the descriptor. None in a forked child.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.cell.load(Ordering::Acquire);
        // SAFETY: it is open for as long as `self` lives, but in a forked child, where the cell is empty.
        (fd != EMPTY).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl AsRawFd for ClosedOnFork {
    fn as_raw_fd(&self) -> RawFd {
        self.cell.load(Ordering::Acquire)
    }
}

impl Drop for ClosedOnFork {
    fn drop(&mut self) {
        let fd = self.cell.swap(EMPTY, Ordering::AcqRel);
        if fd != EMPTY {
            // SAFETY: it came from an `OwnedFd`, and the swap gave it to us alone.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

fn cells() -> impl Iterator<Item = &'static AtomicI32> {
    let mut next = CELLS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: a cell in the list is never freed, and its `next` never changes.
        let cell: &'static Cell = unsafe { next.as_ref()? };
        next = cell.next;
        Some(&cell.fd)
    })
}

extern "C" fn close_all() {
    IS_FORKED.store(true, Ordering::Relaxed);
    for cell in cells() {
        let fd = cell.swap(EMPTY, Ordering::AcqRel);
        if fd != EMPTY {
            // SAFETY: close is allowed in a forked child, and the swap gave the number to us alone.
            unsafe { libc::close(fd) };
        }
    }
}
