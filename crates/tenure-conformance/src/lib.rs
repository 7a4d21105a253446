//! The checks that every engine of tenure must pass, one named test each. They are the text of the engine's
//! contract: what [`tenure_core::engine::Engine`] says in words is tried here.
//!
//! An engine says how it is reached ([`Setup`]) and calls [`suite!`] in the root of its test binary:
//!
//! ```
//! use std::sync::Arc;
//! use tenure_core::{clock::SystemClock, engine::Connect, memory::Store};
//!
//! struct Memory(Arc<Store>);
//!
//! impl tenure_conformance::Setup for Memory {
//!     fn start() -> Memory {
//!         Memory(Store::new(Arc::new(SystemClock)))
//!     }
//!     fn connector(&self) -> Connect {
//!         self.0.clone().connector()
//!     }
//!     fn address(&self) -> String {
//!         unreachable!("no other process can reach this process's memory")
//!     }
//!     fn at(_address: &str) -> Memory {
//!         unreachable!("no other process can reach this process's memory")
//!     }
//! }
//!
//! tenure_conformance::suite!(Memory);
//! # fn main() {}
//! ```
//!
//! Every check is a `pub async fn` that takes `&dyn Setup` and panics if a promise is broken. Checks of the
//! client use its public face; checks of what the public face hides drive the engine itself, with claims made by
//! hand. Whatever is about exclusion or death has its second party in another process, for which the
//! test binary executes itself; an engine that reaches no further than one process ([`Reach::Process`]) gets
//! threads with clients of their own in their place, and a client whose connection is cut in place of a killed
//! one. A check that does not apply to an engine's [`Capability`] says so: a line on standard error, and one in
//! the file that the environment variable `TENURE_CONFORMANCE_SKIPS` names.
//!
//! A new check also needs: its name in the list of [`for_each_check!`], and a breakage that it was seen to fail
//! against in `tests/it/breakages.rs`.
//!
//! [`Capability`]: tenure_core::engine::Capability
//! [`Reach::Process`]: tenure_core::engine::Reach::Process
//!
//! No example but that: what is not [`Setup`] and [`suite!`] is for the checks themselves.

use std::future::Future;
use std::time::Duration;

use tenure_core::engine::Connect;
use tenure_core::testing::busy::stretched;

pub mod against_step;
pub mod crew;
pub mod far;
pub mod history;
pub mod late_slot;
pub mod older_tables;
pub mod queue_crew;
pub mod queue_model;
pub mod silence;

pub mod adoption;
pub mod any_of;
pub mod cancellation;
pub mod claims;
pub mod death;
pub mod election;
pub mod expiry;
pub mod fencing;
pub mod fifo;
pub mod loss;
pub mod mutex;
pub mod observe;
pub mod period;
pub mod queue;
pub mod queue_context;
pub mod queue_turns;
pub mod rw_lock;
pub mod semaphore;
pub mod several;
pub mod single_flight;
pub mod slot_pool;
pub mod slot_set;
pub mod withdrawal;

mod actor;
mod direct;
mod form;
mod mortal;
mod stage;

#[doc(hidden)]
pub use actor::play;

/// How an engine under test is reached.
pub trait Setup: 'static {
    /// Starts or finds a store for one check. Checks use names of their own, so several may share a store.
    fn start() -> Self
    where
        Self: Sized;

    /// Returns what connects one more client with the store.
    fn connector(&self) -> Connect;

    /// Returns a text by which [`Setup::at`] finds the same store in another process. Not asked for where the
    /// engine reaches no further than this process.
    fn address(&self) -> String;

    /// Finds the store of another process.
    fn at(address: &str) -> Self
    where
        Self: Sized;

    /// Names the engine's failpoints ([`tenure_core::testing::failpoint`]): a process is killed at each of them.
    fn failpoints(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns how long a check waits for what must come before it says that it does not (default 20 s on an idle
    /// machine, [`stretched`] on a busy one).
    fn patience(&self) -> Duration {
        stretched(Duration::from_secs(20))
    }
}

/// Makes one `#[test]` of every check for a [`Setup`], named `mutex::excludes_a_second_client` and so on, and
/// the entry `actor` by which the test binary plays a second process.
#[macro_export]
macro_rules! suite {
    ($setup:ty) => {
        $crate::for_each_check! { ($crate::tests_of) [$setup] }

        /// Plays a second process when a check starts one; otherwise nothing.
        #[test]
        fn actor() {
            $crate::play::<$setup>();
        }
    };
}

/// Calls a macro with the list of all checks: `for_each_check! { (path::to::a_macro) [what it is given] }`
/// becomes `path::to::a_macro! { [what it is given] module { check, .. } .. }`.
#[macro_export]
macro_rules! for_each_check {
    (($($callback:tt)+) $given:tt) => {
        $($callback)+! {
            $given
            mutex {
                excludes_a_second_client,
                a_second_process_is_refused,
                processes_that_contend_work_one_after_the_other,
                a_release_frees_it_for_others,
                a_try_does_not_queue,
                a_try_does_not_barge,
                a_refusal_names_the_holder,
                a_client_holds_many_names,
                names_are_compared_byte_by_byte,
                another_kind_or_capacity_is_a_conflict,
                an_idle_name_takes_another_kind,
            }
            fencing {
                each_grant_has_a_larger_token,
                a_waiter_gets_a_larger_token,
                tokens_grow_across_processes,
                tokens_grow_after_an_expiry,
                tokens_grow_after_a_break,
                a_floor_is_honoured,
                a_waiters_floor_is_honoured,
                a_floor_far_ahead_is_refused,
            }
            fifo {
                waiters_are_served_in_order_of_arrival,
                tasks_that_begin_at_once_are_told_in_turn,
                processes_are_served_in_order_of_arrival,
                a_release_reaches_the_next_waiter_by_itself,
                a_withdrawn_waiter_is_skipped,
                a_dead_waiter_is_skipped,
                nobody_is_served_early_when_a_middle_one_leaves,
                a_heartbeat_heals_a_lost_wake,
                a_waiter_is_told_its_place,
            }
            semaphore {
                grants_up_to_its_capacity,
                nobody_overtakes_the_head,
                a_heavy_release_serves_all_that_fit,
                a_weight_above_the_capacity_is_invalid,
                growing_it_serves_waiters,
                shrinking_it_takes_effect_as_units_come_free,
                processes_never_exceed_its_capacity,
                a_wait_dropped_at_any_moment_leaves_nothing,
                a_lease_dropped_outside_a_runtime_is_released,
                a_broken_lease_is_lost_to_its_holder,
                run_drops_its_work_on_loss,
                a_killed_holder_is_replaced,
                a_killed_waiter_is_skipped,
            }
            rw_lock {
                readers_share,
                a_writer_is_alone,
                a_waiting_writer_is_not_starved,
                readers_behind_a_writer_are_served_together,
                processes_read_together_and_write_alone,
                a_wait_dropped_at_any_moment_leaves_nothing,
                a_lease_dropped_outside_a_runtime_is_released,
                a_broken_lease_is_lost_to_its_holder,
                run_drops_its_work_on_loss,
                a_killed_holder_is_replaced,
                a_killed_waiter_is_skipped,
            }
            slot_pool {
                no_slot_is_held_twice,
                the_slot_that_was_free_longest_is_given,
                a_resting_slot_is_not_given,
                processes_of_which_some_are_killed_share_no_slot,
                run_starts_its_work_anew_on_loss,
                a_wait_dropped_at_any_moment_leaves_nothing,
                a_lease_dropped_outside_a_runtime_is_released,
                a_broken_lease_is_lost_to_its_holder,
                a_killed_holder_is_replaced,
                a_killed_waiter_is_skipped,
            }
            slot_set {
                all_slots_are_taken_or_none,
                sets_of_slots_never_deadlock,
                a_set_of_slots_has_one_place,
                a_killed_gatherer_is_replaced,
                a_set_dropped_at_any_moment_leaves_nothing,
            }
            expiry {
                a_hold_ends_after_its_ttl_and_not_before,
                a_renewed_hold_outlives_its_ttl,
                renewing_never_recreates,
                max_hold_ends_a_renewed_hold,
                min_hold_keeps_others_out_after_a_release,
                min_hold_does_not_count_for_an_unused_grant,
                lock_delay_keeps_others_out_after_a_holder_vanished,
                a_release_skips_the_lock_delay,
                an_unconfirmed_grant_ends_after_its_window,
                a_waiter_without_heartbeat_goes,
            }
            claims {
                a_repeated_claim_gets_the_same_grant,
                a_repeated_claim_keeps_its_place,
                a_repeated_release_says_already_lost,
                a_claim_is_not_granted_after_its_own_release,
                an_ended_claim_is_not_granted_again,
                a_broken_claim_is_not_granted_again,
                only_its_own_claim_releases_a_hold,
                a_batch_is_answered_in_order,
                a_value_is_published_only_under_its_hold,
            }
            withdrawal {
                a_waiter_that_was_left_is_passed_over,
                a_grant_of_which_nobody_has_heard_passes_on,
                a_hold_that_was_heard_of_stays,
                what_another_client_has_taken_over_stays,
            }
            adoption {
                another_client_keeps_what_was_detached,
                a_hold_goes_there_and_back,
                every_kind_is_attached_as_it_was,
                a_client_attaches_what_it_has_detached,
                what_is_detached_ends_after_its_ttl,
                waiters_keep_their_order,
                a_killed_client_leaves_what_it_has_detached,
                another_client_is_refused_where_a_claim_cannot_move,
                holds_are_renewed_by_their_ids,
                holds_are_released_by_their_ids,
                max_hold_counts_on,
                an_id_of_the_callers_own_is_one_claim,
                an_id_of_the_callers_own_is_one_place,
                who_waits_on_at_another_client_is_served,
                an_id_of_another_client_is_refused_where_a_claim_cannot_move,
                another_client_finishes_a_delivery,
                a_client_finishes_what_it_has_detached,
                a_detached_delivery_comes_again,
                deliveries_are_renewed_and_settled_by_their_ids,
                a_delivery_of_another_client_is_refused_where_it_cannot_move,
            }
            cancellation {
                an_acquire_dropped_at_any_moment_leaves_nothing,
                a_wait_dropped_at_any_moment_leaves_nothing,
                a_lease_dropped_outside_a_runtime_is_released,
                a_lease_outlives_a_caller_that_is_blocked,
                a_dropped_release_still_releases,
                many_leases_dropped_at_once_are_released,
            }
            loss {
                a_broken_lease_is_lost_to_its_holder,
                a_broken_hold_rests_until_its_former_end,
                what_rests_is_not_broken_again,
                breaking_at_once_frees_it,
                breaking_what_is_not_held_says_so,
                run_drops_its_work_on_loss,
                a_release_after_a_loss_says_already_lost,
                a_lease_is_lost_by_its_deadline_when_the_engine_is_silent,
                a_client_that_was_stopped_finds_its_lease_lost,
            }
            observe {
                inspect_lists_by_prefix_and_in_order,
                inspect_pages_miss_nothing,
                inspect_tells_holders_and_waiters,
                an_observer_sees_the_present_first,
                an_observer_never_misses_the_latest,
                an_observer_sees_an_end_by_itself,
            }
            election {
                one_leads_and_the_next_follows,
                everybody_sees_the_leader,
                changes_end_with_the_latest,
                a_leader_that_loses_its_term_campaigns_again,
                a_leader_that_is_cut_off_campaigns_again,
                a_campaign_dropped_at_any_moment_leaves_nothing,
                a_term_dropped_outside_a_runtime_ends,
                a_broken_term_is_lost_to_the_leader,
                a_killed_leader_is_followed,
                a_killed_candidate_is_skipped,
            }
            single_flight {
                one_loads_for_all,
                a_failed_load_passes_to_one_other,
                a_stale_value_is_served_while_one_loads,
                a_value_that_is_refreshed_is_loaded_although_it_is_fresh,
                a_value_that_is_forgotten_is_served_to_nobody,
                a_value_that_is_too_large_is_refused,
                a_thousand_in_four_processes_cause_one_load,
                a_killed_loader_is_replaced_by_one,
                a_loader_that_loses_its_lease_publishes_nothing,
                a_call_dropped_at_any_moment_leaves_nothing,
            }
            any_of {
                each_takes_the_first_that_is_free,
                whoever_waits_is_served_by_the_first,
            }
            several {
                a_try_takes_all_or_nothing,
                sets_that_overlap_never_deadlock,
                any_mix_is_taken_together,
                what_is_free_is_one_call,
                one_loss_loses_all,
                the_first_deadline_is_the_end_of_all,
                a_wait_that_loses_its_part_begins_again,
                what_was_given_back_does_not_rest,
                many_tasks_of_one_client_share,
                an_acquire_dropped_at_any_moment_leaves_nothing,
                a_wait_dropped_at_any_moment_leaves_nothing,
                leases_dropped_outside_a_runtime_are_released,
                a_broken_lease_is_lost_to_its_holder,
                run_drops_its_work_on_loss,
                a_killed_holder_is_replaced,
                a_killed_waiter_is_skipped,
            }
            period {
                a_run_that_was_killed_is_made_up_for,
                a_run_that_finished_is_not_repeated,
            }
            queue {
                an_item_is_with_one_consumer,
                a_group_is_served_in_order,
                what_has_no_group_is_parallel,
                groups_are_parallel,
                groups_take_turns,
                who_waits_is_told_of_a_push,
                many_who_wait_are_all_served,
                who_waits_by_other_rules_is_told_too,
                a_silent_consumer_is_replaced,
                a_delivery_outlives_its_ttl,
                a_stopped_consumers_ack_is_refused,
                a_killed_consumer_is_replaced,
                a_retry_holds_its_group_back,
                a_delay_holds_back,
                an_interval_is_never_undercut,
                a_group_interval_is_never_undercut,
                a_dedup_id_is_pushed_once,
                what_fails_is_a_dead_letter,
                the_last_attempt_is_buried,
                what_is_let_go_comes_again,
                a_wait_dropped_at_any_moment_loses_nothing,
                payloads_are_bytes,
                what_is_there_is_told,
                a_batch_is_answered_in_order,
                processes_share_a_queue_in_order,
                a_killed_client_loses_nothing,
                it_behaves_like_the_model,
            }
            queue_turns {
                those_who_are_gone_are_passed_over,
            }
            queue_context {
                a_context_comes_with_each_delivery,
                a_context_is_that_of_its_item,
                a_batch_keeps_contexts_apart,
            }
            death {
                a_killed_holder_is_replaced,
                a_killed_waiter_is_skipped,
                a_client_killed_at_any_point_leaves_nothing,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! tests_of {
    ([$setup:ty] $($module:ident { $($check:ident,)* })*) => {
        $(
            mod $module {
                #[allow(unused_imports, reason = "the setup may be named by a whole path")]
                use super::*;
                $(
                    #[test]
                    fn $check() {
                        let setup = <$setup as $crate::Setup>::start();
                        $crate::run(module_path!(), $crate::$module::$check(&setup));
                    }
                )*
            }
        )*
    };
}

/// Runs a check on this thread. `module` is the path of a module beside which the entry `actor` is.
#[doc(hidden)]
pub fn run(module: &str, check: impl Future<Output = ()>) {
    actor::note_entry(module);
    pollster::block_on(check);
}
