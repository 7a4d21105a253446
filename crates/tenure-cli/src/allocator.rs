//! The allocator of the command. A command that lives for a moment has that of the system, which touches little memory until it is used;
//! `tenure serve` asks for one that gives back what ten thousand requests had. See
//! `docs/adr/0059-the-command-has-an-allocator-of-its-own.md`.
#![allow(unsafe_code, reason = "whoever is the global allocator implements an unsafe trait; see the ADR")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

use libmimalloc_sys::mi_is_in_heap_region;
use mimalloc::MiMalloc;

/// Has the system's blocks, and from [`give_back`] on mimalloc's.
pub(crate) struct Allocator;

static GIVES_BACK: AtomicBool = AtomicBool::new(false);

/// Has blocks from an allocator that gives empty pages back, from now on.
pub(crate) fn give_back() {
    GIVES_BACK.store(true, Ordering::Relaxed);
}

fn gives_back() -> bool {
    // Whoever was given a block of mimalloc's by another thread sees all that happened before it was made.
    GIVES_BACK.load(Ordering::Relaxed)
}

/// Says whose a block is.
fn is_of_mimalloc(block: *mut u8) -> bool {
    // SAFETY: the call looks the address up in mimalloc's own map, whatever is there.
    gives_back() && unsafe { mi_is_in_heap_region(block.cast()) }
}

// SAFETY: both allocators keep the promises of the trait, and a block goes back to the one that it is of.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { if gives_back() { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { if gives_back() { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above, and it is the allocator that made the block.
        unsafe {
            if is_of_mimalloc(block) {
                MiMalloc.dealloc(block, layout);
            } else {
                System.dealloc(block, layout);
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if is_of_mimalloc(block) {
                MiMalloc.realloc(block, layout, size)
            } else {
                System.realloc(block, layout, size)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_back_to_the_allocator_that_it_is_of() {
        let sizes = [1, 100, 5_000, 300_000, 40_000_000];
        // Every second one is asked for as zeros.
        let blocks =
            || -> Vec<Vec<u8>> { sizes.iter().flat_map(|&size| [vec![1; size], vec![0; size]]).collect() };
        let mut before = blocks();
        assert!(before.iter_mut().all(|block| !is_of_mimalloc(block.as_mut_ptr())));
        give_back();
        let mut after = blocks();
        assert!(after.iter_mut().all(|block| is_of_mimalloc(block.as_mut_ptr())));
        assert!(before.iter_mut().all(|block| !is_of_mimalloc(block.as_mut_ptr())));
        // Each grows, shrinks and ends where it was made, in another thread as well.
        let both = [before, after];
        let ended = std::thread::spawn(move || {
            for mut block in both.into_iter().flatten() {
                let (kept, filled_with) = (block.len(), block[0]);
                block.resize(3 * kept, 2);
                block.truncate(kept);
                block.shrink_to_fit();
                assert!(block.iter().all(|byte| *byte == filled_with));
            }
        });
        ended.join().expect("no panic");
    }
}
