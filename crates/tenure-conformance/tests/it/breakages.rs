//! Every check was seen to fail: the list of breakages, and the test that tries them all.
//!
//! A line names a check, an engine that is broken for it, and a part of what the check must say about it (or
//! one of several parts, where chance decides what is seen first), so that it fails for the reason that it was
//! written for. Clients that share the process of their check are
//! "killed" by cutting their connection, so the checks of death need no other process to be broken either.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use crate::broken_engine::Call;
use crate::broken_queue::Line;
use crate::broken_record::Rule;
use crate::broken_setup::{Breakage, Broken};

/// How many checks are under way at once. Most of the time they wait.
const AT_ONCE: usize = 16;
/// How often a breakage is tried. A check of a period sees nothing of what ends too early while its machine stands still, so it may pass
/// now and then; not so often in a row.
const TRIES: usize = 3;
/// No check may take longer, whatever the engine does.
const CHECK_TIME_MAX: Duration = Duration::from_secs(60);

use Breakage::{AdoptsMore, Calls, OwnWorld, PromisesMore, Queues, Record};

/// Which check fails on which breakage, saying what.
#[rustfmt::skip]
const BREAKAGES: &[(&str, Breakage, &str)] = &[
    ("mutex::excludes_a_second_client", OwnWorld, "two clients hold"),
    ("mutex::excludes_a_second_client", Record(Rule::CapacityIgnored), "hold"),
    ("mutex::processes_that_contend_work_one_after_the_other", OwnWorld, "at once"),
    ("mutex::processes_that_contend_work_one_after_the_other", Record(Rule::CapacityIgnored), "at once"),
    ("mutex::processes_that_contend_work_one_after_the_other", Calls(Call::TokensRepeat), "no larger token"),
    ("mutex::a_second_process_is_refused", OwnWorld, "what this one holds"),
    ("mutex::a_second_process_is_refused", Record(Rule::CapacityIgnored), "what this one holds"),
    ("mutex::a_second_process_is_refused", Calls(Call::ReleasesIgnored), "an actor answers: granted"),
    ("mutex::a_release_frees_it_for_others", Calls(Call::ReleasesIgnored), "free at once"),
    ("mutex::a_release_frees_it_for_others", Calls(Call::MinHoldForced), "free at once"),
    ("mutex::a_try_does_not_queue", Calls(Call::TriesQueue), "a try that was refused waits"),
    ("mutex::a_try_does_not_barge", Record(Rule::TriesBarge), "not refused"),
    ("mutex::a_refusal_names_the_holder", Calls(Call::HoldersUnnamed), "names the holder"),
    ("mutex::a_client_holds_many_names", OwnWorld, "granted to another client"),
    ("mutex::a_client_holds_many_names", Calls(Call::NamesCutAt(22)), "granted"),
    ("mutex::names_are_compared_byte_by_byte", Calls(Call::NamesFolded), "taken for another"),
    ("mutex::names_are_compared_byte_by_byte", Calls(Call::NamesCutAt(254)), "taken for another"),
    ("mutex::another_kind_or_capacity_is_a_conflict", Record(Rule::KindsMixed), "is refused"),
    ("mutex::an_idle_name_takes_another_kind", Calls(Call::KindsForEver), "not granted"),
    ("fencing::each_grant_has_a_larger_token", Calls(Call::TokensRepeat), "a later grant"),
    ("fencing::each_grant_has_a_larger_token", Calls(Call::TokensFall), "a later grant"),
    ("fencing::a_waiter_gets_a_larger_token", Calls(Call::TokensRepeat), "horizon"),
    ("fencing::tokens_grow_across_processes", Calls(Call::TokensFall), "no larger token"),
    ("fencing::tokens_grow_after_an_expiry", Calls(Call::TokensRepeat), "a later grant"),
    ("fencing::tokens_grow_after_an_expiry", Calls(Call::RenewalsSayYes), "lost"),
    ("fencing::tokens_grow_after_a_break", Calls(Call::TokensRepeat), "a later grant"),
    ("fencing::a_floor_is_honoured", Calls(Call::FloorsIgnored), "above the floor"),
    ("fencing::a_waiters_floor_is_honoured", Calls(Call::FloorsIgnored), "above the floor"),
    ("fencing::a_floor_far_ahead_is_refused", Calls(Call::FloorsForced), "two hours ahead"),
    ("fifo::waiters_are_served_in_order_of_arrival", Record(Rule::LastComeFirstServed), "next in the queue"),
    ("fifo::tasks_that_begin_at_once_are_told_in_turn", Queues(Line::Untold), "wait for a heartbeat|all take their turns"),
    ("fifo::processes_are_served_in_order_of_arrival", Record(Rule::LastComeFirstServed), "an actor answers: granted"),
    ("fifo::a_release_reaches_the_next_waiter_by_itself", Calls(Call::GrantsUntold), "waiter is served"),
    ("fifo::a_withdrawn_waiter_is_skipped", Record(Rule::WithdrawalsIgnored), "the place is gone"),
    ("fifo::a_dead_waiter_is_skipped", Record(Rule::WaitersNeverEnd), "dead waiter is gone"),
    ("fifo::nobody_is_served_early_when_a_middle_one_leaves", Record(Rule::LeavingFrees), "must still wait"),
    ("fifo::nobody_is_served_early_when_a_middle_one_leaves", Record(Rule::LastComeFirstServed), "hold was released"),
    ("fifo::a_heartbeat_heals_a_lost_wake", Calls(Call::GrantsUntold), "its wake was lost"),
    ("fifo::a_heartbeat_heals_a_lost_wake", Record(Rule::HeartbeatsConfirmNothing), "a heartbeat confirms"),
    ("fifo::a_waiter_is_told_its_place", Calls(Call::PlacesUntold), "place"),
    ("semaphore::grants_up_to_its_capacity", Record(Rule::CapacityIgnored), "not refused"),
    ("semaphore::nobody_overtakes_the_head", Record(Rule::TriesOvertake), "not refused"),
    ("semaphore::nobody_overtakes_the_head", Record(Rule::LastComeFirstServed), "came first"),
    ("semaphore::a_heavy_release_serves_all_that_fit", Record(Rule::OneServedOthersLost), "it fits"),
    ("semaphore::a_weight_above_the_capacity_is_invalid", Calls(Call::WeightsClamped), "is refused"),
    ("semaphore::growing_it_serves_waiters", Calls(Call::ResizesIgnored), "two units"),
    ("semaphore::shrinking_it_takes_effect_as_units_come_free", Calls(Call::ResizesIgnored), "not refused"),
    ("semaphore::processes_never_exceed_its_capacity", OwnWorld, "held at once"),
    ("semaphore::processes_never_exceed_its_capacity", Record(Rule::CapacityIgnored), "held at once"),
    ("semaphore::a_wait_dropped_at_any_moment_leaves_nothing", Record(Rule::WithdrawalsIgnored), "not within|no place is left"),
    ("semaphore::a_lease_dropped_outside_a_runtime_is_released", Calls(Call::ReleasesIgnored), "next in the queue"),
    ("semaphore::a_broken_lease_is_lost_to_its_holder", Calls(Call::BreaksIgnored), "is told"),
    ("semaphore::run_drops_its_work_on_loss", Calls(Call::BreaksIgnored), "work under a lost lease ends"),
    ("semaphore::a_killed_holder_is_replaced", Record(Rule::HoldsNeverEnd), "next in the queue"),
    ("semaphore::a_killed_waiter_is_skipped", Record(Rule::HoldsNeverEnd), "next waiter"),
    ("rw_lock::readers_share", Calls(Call::ReadersExclude), "not granted"),
    ("rw_lock::a_writer_is_alone", OwnWorld, "not refused"),
    ("rw_lock::a_writer_is_alone", Record(Rule::CapacityIgnored), "not refused"),
    ("rw_lock::a_waiting_writer_is_not_starved", Record(Rule::TriesOvertake), "not refused"),
    ("rw_lock::readers_behind_a_writer_are_served_together", Record(Rule::OneServedOthersLost), "readers share"),
    ("rw_lock::processes_read_together_and_write_alone", OwnWorld, "joins readers"),
    ("rw_lock::processes_read_together_and_write_alone", Record(Rule::CapacityIgnored), "joins readers"),
    ("rw_lock::processes_read_together_and_write_alone", Calls(Call::ReadersExclude), "a reader is refused"),
    ("rw_lock::processes_read_together_and_write_alone", Calls(Call::WritersLight), "beside a writer"),
    ("rw_lock::a_wait_dropped_at_any_moment_leaves_nothing", Record(Rule::WithdrawalsIgnored), "not within|no place is left"),
    ("rw_lock::a_lease_dropped_outside_a_runtime_is_released", Calls(Call::ReleasesIgnored), "next in the queue"),
    ("rw_lock::a_broken_lease_is_lost_to_its_holder", Calls(Call::BreaksIgnored), "is told"),
    ("rw_lock::run_drops_its_work_on_loss", Calls(Call::BreaksIgnored), "work under a lost lease ends"),
    ("rw_lock::a_killed_holder_is_replaced", Record(Rule::HoldsNeverEnd), "next in the queue"),
    ("rw_lock::a_killed_waiter_is_skipped", Record(Rule::HoldsNeverEnd), "next waiter"),
    ("slot_pool::no_slot_is_held_twice", Calls(Call::OneSlotForAll), "held twice"),
    ("slot_pool::the_slot_that_was_free_longest_is_given", Record(Rule::SlotsLastFreedFirst), "given first"),
    ("slot_pool::a_resting_slot_is_not_given", Record(Rule::RestsSkipped), "too early"),
    ("slot_pool::processes_of_which_some_are_killed_share_no_slot", OwnWorld, "at once"),
    ("slot_pool::processes_of_which_some_are_killed_share_no_slot", Calls(Call::OneSlotForAll), "at once"),
    ("slot_pool::processes_of_which_some_are_killed_share_no_slot", Calls(Call::TokensRepeat), "no larger token"),
    ("slot_pool::processes_of_which_some_are_killed_share_no_slot", Record(Rule::HoldsNeverEnd), "granted"),
    ("slot_pool::run_starts_its_work_anew_on_loss", Calls(Call::BreaksIgnored), "starts anew"),
    ("slot_pool::run_starts_its_work_anew_on_loss", Calls(Call::OneSlotForAll), "another slot"),
    ("slot_pool::a_wait_dropped_at_any_moment_leaves_nothing", Record(Rule::WithdrawalsIgnored), "not within|no place is left"),
    ("slot_pool::a_lease_dropped_outside_a_runtime_is_released", Calls(Call::ReleasesIgnored), "next in the queue"),
    ("slot_pool::a_broken_lease_is_lost_to_its_holder", Calls(Call::BreaksIgnored), "is told"),
    ("slot_pool::a_killed_holder_is_replaced", Record(Rule::HoldsNeverEnd), "next in the queue"),
    ("slot_pool::a_killed_waiter_is_skipped", Record(Rule::HoldsNeverEnd), "next waiter"),
    ("slot_set::all_slots_are_taken_or_none", OwnWorld, "while another client holds one"),
    ("slot_set::all_slots_are_taken_or_none", Calls(Call::OneSlotForAll), "held twice"),
    ("slot_set::all_slots_are_taken_or_none", Calls(Call::ReleasesIgnored), "came back"),
    ("slot_set::sets_of_slots_never_deadlock", OwnWorld, "at once"),
    ("slot_set::sets_of_slots_never_deadlock", Record(Rule::CapacityIgnored), "at once|its thread has ended"),
    ("slot_set::a_set_of_slots_has_one_place", Record(Rule::LastComeFirstServed), "granted before|it has both"),
    ("slot_set::a_killed_gatherer_is_replaced", Record(Rule::HoldsNeverEnd), "next one has all"),
    ("slot_set::a_set_dropped_at_any_moment_leaves_nothing", Calls(Call::ReleasesIgnored), "is left|not within"),
    ("expiry::a_hold_ends_after_its_ttl_and_not_before", Record(Rule::HoldsNeverEnd), "never came free"),
    ("expiry::a_hold_ends_after_its_ttl_and_not_before", Record(Rule::HoldsEndEarly), "too early"),
    ("expiry::a_renewed_hold_outlives_its_ttl", Record(Rule::HoldsEndEarly), "renewed in time"),
    ("expiry::a_renewed_hold_outlives_its_ttl", Calls(Call::RenewalsLie), "not refused"),
    ("expiry::renewing_never_recreates", Calls(Call::RenewalsSayYes), "came after the end"),
    ("expiry::renewing_never_recreates", Record(Rule::HoldsNeverEnd), "the hold ends"),
    ("expiry::max_hold_ends_a_renewed_hold", Calls(Call::LimitsIgnored), "told to end"),
    ("expiry::max_hold_ends_a_renewed_hold", Record(Rule::HoldsNeverEnd), "is renewed ends"),
    ("expiry::min_hold_keeps_others_out_after_a_release", Calls(Call::LimitsIgnored), "too early"),
    ("expiry::min_hold_keeps_others_out_after_a_release", Record(Rule::RestsSkipped), "too early"),
    ("expiry::min_hold_does_not_count_for_an_unused_grant", Calls(Call::UnusedForgotten), "not granted"),
    ("expiry::lock_delay_keeps_others_out_after_a_holder_vanished", Calls(Call::LimitsIgnored), "too early"),
    ("expiry::a_release_skips_the_lock_delay", Calls(Call::DelaysAlways), "not granted"),
    ("expiry::an_unconfirmed_grant_ends_after_its_window", Record(Rule::WindowIgnored), "unconfirmed grant ends in"),
    ("expiry::an_unconfirmed_grant_ends_after_its_window", Record(Rule::HoldsNeverEnd), "silent waiter"),
    ("expiry::a_waiter_without_heartbeat_goes", Record(Rule::WaitersNeverEnd), "silent waiter goes"),
    ("claims::a_repeated_claim_gets_the_same_grant", Calls(Call::IdsAnew), "not granted"),
    ("claims::a_repeated_claim_gets_the_same_grant", Calls(Call::TokensFall), "another grant"),
    ("claims::a_repeated_claim_keeps_its_place", Calls(Call::IdsAnew), "keeps its place"),
    ("claims::a_repeated_release_says_already_lost", Calls(Call::ReleasesSayYes), "nothing is there"),
    ("claims::a_repeated_release_says_already_lost", Record(Rule::ReleasesOfAnybody), "AlreadyLost"),
    ("claims::a_claim_is_not_granted_after_its_own_release", Record(Rule::FinishedForgotten), "own release"),
    ("claims::an_ended_claim_is_not_granted_again", Record(Rule::FinishedForgotten), "ended claim"),
    ("claims::a_broken_claim_is_not_granted_again", Record(Rule::FinishedForgotten), "broken claim"),
    ("claims::only_its_own_claim_releases_a_hold", Record(Rule::ReleasesOfAnybody), "another's id"),
    ("claims::a_batch_is_answered_in_order", Calls(Call::BatchesReversed), "out of order"),
    ("claims::a_value_is_published_only_under_its_hold", Record(Rule::ValuesOfAnybody), "cannot publish"),
    ("claims::a_value_is_published_only_under_its_hold", Calls(Call::ValuesForgotten), "value is seen"),
    ("withdrawal::a_waiter_that_was_left_is_passed_over", Calls(Call::WithdrawalsIgnored), "is withdrawn twice"),
    ("withdrawal::a_waiter_that_was_left_is_passed_over", Record(Rule::FinishedForgotten), "was answered"),
    ("withdrawal::a_grant_of_which_nobody_has_heard_passes_on", Calls(Call::WithdrawalsIgnored), "next in line was answered"),
    ("withdrawal::a_hold_that_was_heard_of_stays", Calls(Call::WithdrawalsRelease), "it must still wait"),
    ("withdrawal::a_hold_that_was_heard_of_stays", Record(Rule::WithdrawsAnything), "granted at once|was confirmed"),
    ("withdrawal::what_another_client_has_taken_over_stays", Calls(Call::WithdrawalsRelease), "heartbeat was answered|it must still wait"),
    ("withdrawal::what_another_client_has_taken_over_stays", Record(Rule::WithdrawsAnything), "a waiter of another client"),
    ("adoption::another_client_keeps_what_was_detached", OwnWorld, "is attached"),
    ("adoption::another_client_keeps_what_was_detached", Calls(Call::AdoptionsForgotten), "is attached"),
    ("adoption::another_client_keeps_what_was_detached", Calls(Call::AdoptionsGrant), "is attached"),
    ("adoption::another_client_keeps_what_was_detached", Record(Rule::HoldsEndEarly), "is renewed|is attached"),
    ("adoption::a_hold_goes_there_and_back", Calls(Call::AdoptionsForgotten), "is attached"),
    ("adoption::a_hold_goes_there_and_back", Record(Rule::HoldsEndEarly), "is renewed|is attached"),
    ("adoption::every_kind_is_attached_as_it_was", Calls(Call::AdoptionsForgotten), "is attached"),
    ("adoption::every_kind_is_attached_as_it_was", Record(Rule::CapacityIgnored), "joins a writer"),
    ("adoption::a_client_attaches_what_it_has_detached", Calls(Call::AdoptionsForgotten), "is attached"),
    ("adoption::a_client_attaches_what_it_has_detached", Record(Rule::CapacityIgnored), "not refused"),
    ("adoption::what_is_detached_ends_after_its_ttl", Record(Rule::HoldsNeverEnd), "was detached ends"),
    ("adoption::what_is_detached_ends_after_its_ttl", Record(Rule::HoldsEndEarly), "too early"),
    ("adoption::what_is_detached_ends_after_its_ttl", Calls(Call::RenewalsSayYes), "an attachment is answered"),
    ("adoption::waiters_keep_their_order", Record(Rule::LastComeFirstServed), "first in line"),
    ("adoption::waiters_keep_their_order", Calls(Call::AdoptionsForgotten), "is attached"),
    ("adoption::a_killed_client_leaves_what_it_has_detached", Record(Rule::HoldsNeverEnd), "nobody attached ends"),
    ("adoption::a_killed_client_leaves_what_it_has_detached", Calls(Call::AdoptionsForgotten), "is attached"),
    ("adoption::another_client_is_refused_where_a_claim_cannot_move", AdoptsMore, "cannot renew"),
    ("adoption::holds_are_renewed_by_their_ids", Calls(Call::AdoptionsLie), "not refused|lives on"),
    ("adoption::holds_are_renewed_by_their_ids", Calls(Call::AdoptionsOfAnybody), "nobody holds"),
    ("adoption::holds_are_renewed_by_their_ids", Calls(Call::AdoptionsForgotten), "lives on"),
    ("adoption::holds_are_released_by_their_ids", Calls(Call::ReleasesIgnored), "release by its id|free at once"),
    ("adoption::holds_are_released_by_their_ids", Calls(Call::ReleasesSayYes), "release by its id"),
    ("adoption::an_id_of_the_callers_own_is_one_claim", Calls(Call::IdsAnew), "granted again|not within|Finished"),
    ("adoption::an_id_of_the_callers_own_is_one_claim", Record(Rule::FinishedForgotten), "used up is granted"),
    ("adoption::an_id_of_the_callers_own_is_one_place", Calls(Call::IdsAnew), "keeps its place"),
    ("adoption::who_waits_on_at_another_client_is_served", Calls(Call::IdsAnew), "keeps its place"),
    ("adoption::an_id_of_another_client_is_refused_where_a_claim_cannot_move", AdoptsMore, "takes the id"),
    ("adoption::another_client_finishes_a_delivery", Queues(Line::AdoptionsForgotten), "is attached"),
    ("adoption::another_client_finishes_a_delivery", Queues(Line::AcksIgnored), "is done"),
    ("adoption::a_client_finishes_what_it_has_detached", Queues(Line::AdoptionsForgotten), "is attached"),
    ("adoption::a_client_finishes_what_it_has_detached", Queues(Line::AcksIgnored), "is done"),
    ("adoption::a_detached_delivery_comes_again", Queues(Line::EndsLate), "handed out again"),
    ("adoption::a_detached_delivery_comes_again", Queues(Line::AdoptionsLie), "that has ended is attached"),
    ("adoption::deliveries_are_renewed_and_settled_by_their_ids", Queues(Line::AdoptionsLie), "nobody has|two consumers"),
    ("adoption::deliveries_are_renewed_and_settled_by_their_ids", Queues(Line::AcksIgnored), "one answer for each"),
    ("adoption::a_delivery_of_another_client_is_refused_where_it_cannot_move", AdoptsMore, "cannot renew"),
    ("adoption::max_hold_counts_on", Calls(Call::LimitsIgnored), "max_hold ends"),
    ("cancellation::an_acquire_dropped_at_any_moment_leaves_nothing", Calls(Call::ReleasesIgnored), "is left"),
    ("cancellation::a_wait_dropped_at_any_moment_leaves_nothing", Record(Rule::WithdrawalsIgnored), "not within|no place is left"),
    ("cancellation::a_wait_dropped_at_any_moment_leaves_nothing", Calls(Call::ReleasesIgnored), "not within"),
    ("cancellation::a_lease_dropped_outside_a_runtime_is_released", Calls(Call::ReleasesIgnored), "next in the queue"),
    ("cancellation::a_lease_outlives_a_caller_that_is_blocked", Record(Rule::HoldsEndEarly), "is renewed while"),
    ("cancellation::a_lease_outlives_a_caller_that_is_blocked", Calls(Call::RenewalsLie), "the engine knows"),
    ("cancellation::a_dropped_release_still_releases", Calls(Call::ReleasesIgnored), "next in the queue"),
    ("cancellation::many_leases_dropped_at_once_are_released", Calls(Call::ReleasesIgnored), "all leases"),
    ("loss::a_broken_lease_is_lost_to_its_holder", Calls(Call::BreaksIgnored), "is told"),
    ("loss::a_broken_lease_is_lost_to_its_holder", Calls(Call::RenewalsSayYes), "is told"),
    ("loss::a_broken_hold_rests_until_its_former_end", Calls(Call::BreaksAtOnce), "does not wait"),
    ("loss::a_broken_hold_rests_until_its_former_end", Record(Rule::RestsSkipped), "does not wait"),
    ("loss::what_rests_is_not_broken_again", Calls(Call::BreaksAtOnce), "nothing is left to break"),
    ("loss::what_rests_is_not_broken_again", Record(Rule::RestsSkipped), "nothing is left to break"),
    ("loss::breaking_at_once_frees_it", Calls(Call::BreaksIgnored), "hold was broken"),
    ("loss::breaking_at_once_frees_it", Calls(Call::RenewalsSayYes), "not renewed"),
    ("loss::breaking_what_is_not_held_says_so", Record(Rule::BreaksOfAnybody), "was broken"),
    ("loss::breaking_what_is_not_held_says_so", Calls(Call::BreaksIgnored), "nobody holds it"),
    ("loss::run_drops_its_work_on_loss", Calls(Call::BreaksIgnored), "work under a lost lease ends"),
    ("loss::run_drops_its_work_on_loss", Calls(Call::RenewalsSayYes), "work under a lost lease ends"),
    ("loss::a_release_after_a_loss_says_already_lost", Calls(Call::ReleasesSayYes), "AlreadyLost"),
    ("loss::a_lease_is_lost_by_its_deadline_when_the_engine_is_silent", Record(Rule::HoldsEndEarly), "two clients hold"),
    ("loss::a_client_that_was_stopped_finds_its_lease_lost", Record(Rule::HoldsNeverEnd), "the next holder"),
    ("observe::inspect_lists_by_prefix_and_in_order", Calls(Call::PrefixesIgnored), "is listed"),
    ("observe::inspect_pages_miss_nothing", Calls(Call::PagesReversed), "every name once"),
    ("observe::inspect_pages_miss_nothing", Calls(Call::PagesRepeat), "listed twice"),
    ("observe::inspect_pages_miss_nothing", Calls(Call::PagesSkip), "every name once"),
    ("observe::inspect_tells_holders_and_waiters", Calls(Call::WaitersUnlisted), "waits first"),
    ("observe::an_observer_sees_the_present_first", Calls(Call::PresentUnseen), "a first view"),
    ("observe::an_observer_never_misses_the_latest", Calls(Call::ChangesUnseen), "sees the latest"),
    ("observe::an_observer_sees_an_end_by_itself", Calls(Call::ChangesUnseen), "sees the end"),
    ("election::one_leads_and_the_next_follows", OwnWorld, "two lead"),
    ("election::one_leads_and_the_next_follows", Calls(Call::TokensRepeat), "no larger token"),
    ("election::everybody_sees_the_leader", Calls(Call::ValuesForgotten), "value is seen"),
    ("election::everybody_sees_the_leader", Calls(Call::ReleasesIgnored), "nobody leads any more"),
    ("election::changes_end_with_the_latest", Calls(Call::ValuesForgotten), "latest leader is seen"),
    ("election::a_leader_that_loses_its_term_campaigns_again", Calls(Call::BreaksIgnored), "its term is over"),
    ("single_flight::one_loads_for_all", OwnWorld, "more than one loaded"),
    ("single_flight::one_loads_for_all", Calls(Call::ValuesForgotten), "more than one loaded|not within"),
    ("single_flight::a_failed_load_passes_to_one_other", OwnWorld, "in place of the one that failed"),
    ("single_flight::a_stale_value_is_served_while_one_loads", Calls(Call::ValuesForgotten), "it is fresh"),
    ("single_flight::a_value_that_is_refreshed_is_loaded_although_it_is_fresh", Calls(Call::ValuesForgotten), "the new one is fresh"),
    ("single_flight::a_value_that_is_forgotten_is_served_to_nobody", Calls(Call::ValuesStay), "nothing is kept"),
    ("single_flight::a_value_that_is_too_large_is_refused", Calls(Call::ReleasesIgnored), "not within"),
    ("election::a_leader_that_is_cut_off_campaigns_again", Record(Rule::HoldsNeverEnd), "the term ends|a second term"),
    ("election::a_campaign_dropped_at_any_moment_leaves_nothing", Calls(Call::ReleasesIgnored), "is left"),
    ("election::a_campaign_dropped_at_any_moment_leaves_nothing", Record(Rule::WithdrawalsIgnored), "not within|no place is left|is left"),
    ("election::a_term_dropped_outside_a_runtime_ends", Calls(Call::ReleasesIgnored), "next in the queue"),
    ("election::a_broken_term_is_lost_to_the_leader", Calls(Call::BreaksIgnored), "is told"),
    ("election::a_broken_term_is_lost_to_the_leader", Calls(Call::RenewalsSayYes), "is told"),
    ("election::a_killed_leader_is_followed", Record(Rule::HoldsNeverEnd), "next in the queue"),
    ("election::a_killed_leader_is_followed", PromisesMore, "next in the queue"),
    ("election::a_killed_candidate_is_skipped", Record(Rule::HoldsNeverEnd), "next waiter"),
    ("single_flight::a_thousand_in_four_processes_cause_one_load", OwnWorld, "more than one loaded"),
    ("single_flight::a_thousand_in_four_processes_cause_one_load", Record(Rule::CapacityIgnored), "more than one loaded"),
    ("single_flight::a_killed_loader_is_replaced_by_one", Record(Rule::HoldsNeverEnd), "one loads in its place"),
    ("single_flight::a_killed_loader_is_replaced_by_one", PromisesMore, "one loads in its place"),
    ("single_flight::a_killed_loader_is_replaced_by_one", Record(Rule::CapacityIgnored), "never came true"),
    ("single_flight::a_loader_that_loses_its_lease_publishes_nothing", Calls(Call::BreaksIgnored), "its lease was broken"),
    ("single_flight::a_loader_that_loses_its_lease_publishes_nothing", Calls(Call::RenewalsSayYes), "under a lost lease ends"),
    ("single_flight::a_call_dropped_at_any_moment_leaves_nothing", Calls(Call::ReleasesIgnored), "nothing is left"),
    ("single_flight::a_call_dropped_at_any_moment_leaves_nothing", Record(Rule::WithdrawalsIgnored), "nothing is left"),
    ("any_of::each_takes_the_first_that_is_free", OwnWorld, "first that is free|got what is held"),
    ("any_of::each_takes_the_first_that_is_free", Record(Rule::CapacityIgnored), "first that is free|got what is held"),
    ("any_of::each_takes_the_first_that_is_free", Calls(Call::ReleasesIgnored), "never came true"),
    ("any_of::whoever_waits_is_served_by_the_first", Calls(Call::ReleasesIgnored), "not within|a wait"),
    ("any_of::whoever_waits_is_served_by_the_first", Record(Rule::WithdrawalsIgnored), "leaves the others"),
    ("several::a_try_takes_all_or_nothing", OwnWorld, "while another client holds one"),
    ("several::a_try_takes_all_or_nothing", Record(Rule::CapacityIgnored), "while another client holds one"),
    ("several::a_try_takes_all_or_nothing", Calls(Call::ReleasesIgnored), "holds a part"),
    ("several::sets_that_overlap_never_deadlock", OwnWorld, "at once"),
    ("several::sets_that_overlap_never_deadlock", Record(Rule::CapacityIgnored), "at once"),
    ("several::sets_that_overlap_never_deadlock", Calls(Call::ReleasesIgnored), "not within"),
    ("several::any_mix_is_taken_together", Calls(Call::OneSlotForAll), "held twice"),
    ("several::any_mix_is_taken_together", Calls(Call::ReadersExclude), "readers share"),
    ("several::what_is_free_is_one_call", Calls(Call::ClaimsFailFirst), "calls that claim"),
    ("several::one_loss_loses_all", Calls(Call::BreaksIgnored), "is told"),
    ("several::one_loss_loses_all", Calls(Call::ReleasesIgnored), "let go is free"),
    ("several::one_loss_loses_all", Record(Rule::CapacityIgnored), "has not let go"),
    ("several::the_first_deadline_is_the_end_of_all", Record(Rule::HoldsEndEarly), "two clients hold"),
    ("several::a_wait_that_loses_its_part_begins_again", Calls(Call::BreaksIgnored), "has all in the end|the claim is granted"),
    ("several::a_wait_that_loses_its_part_begins_again", Calls(Call::RenewalsSayYes), "has all in the end|begins again"),
    ("several::what_was_given_back_does_not_rest", Calls(Call::UnusedForgotten), "given back rests"),
    ("several::many_tasks_of_one_client_share", Calls(Call::ReleasesIgnored), "not within"),
    ("several::an_acquire_dropped_at_any_moment_leaves_nothing", Calls(Call::ReleasesIgnored), "is left|not within"),
    ("several::a_wait_dropped_at_any_moment_leaves_nothing", Record(Rule::WithdrawalsIgnored), "not within|no place is left"),
    ("several::leases_dropped_outside_a_runtime_are_released", Calls(Call::ReleasesIgnored), "next in the queue"),
    ("several::a_broken_lease_is_lost_to_its_holder", Calls(Call::BreaksIgnored), "is told"),
    ("several::run_drops_its_work_on_loss", Calls(Call::BreaksIgnored), "work under a lost lease ends"),
    ("several::a_killed_holder_is_replaced", Record(Rule::HoldsNeverEnd), "next in the queue"),
    ("several::a_killed_waiter_is_skipped", Record(Rule::HoldsNeverEnd), "next waiter"),
    ("several::a_killed_waiter_is_skipped", PromisesMore, "next waiter"),
    ("period::a_run_that_was_killed_is_made_up_for", Record(Rule::HoldsNeverEnd), "is made up for"),
    ("period::a_run_that_was_killed_is_made_up_for", Calls(Call::PeriodsAlways), "is made up for"),
    ("period::a_run_that_was_killed_is_made_up_for", OwnWorld, "two run at once"),
    ("period::a_run_that_finished_is_not_repeated", Calls(Call::LimitsIgnored), "ran twice"),
    ("period::a_run_that_finished_is_not_repeated", Record(Rule::RestsSkipped), "ran twice"),
    ("queue::an_item_is_with_one_consumer", OwnWorld, "an item is handed out"),
    ("queue::an_item_is_with_one_consumer", Queues(Line::AcksIgnored), "is counted"),
    ("queue::a_group_is_served_in_order", Queues(Line::GroupsIgnored), "Some(\"g\")|two of a group"),
    ("queue::a_group_is_served_in_order", Queues(Line::TokensRepeat), "no larger token"),
    ("queue::what_has_no_group_is_parallel", Queues(Line::OneGroup), "an item is handed out"),
    ("queue::groups_are_parallel", Queues(Line::OneGroup), "an item is handed out"),
    ("queue::groups_are_parallel", Queues(Line::GroupsIgnored), "holds back another"),
    ("queue::groups_take_turns", Queues(Line::OneGroup), "take turns"),
    ("queue::who_waits_is_told_of_a_push", Queues(Line::Untold), "who waits is served|told after"),
    ("queue::many_who_wait_are_all_served", Queues(Line::Untold), "all are served|an item is handed out"),
    ("queue::who_waits_by_other_rules_is_told_too", Queues(Line::Untold), "both are served|is told after"),
    ("queue::a_silent_consumer_is_replaced", Queues(Line::EndsLate), "an item is handed out"),
    ("queue::a_silent_consumer_is_replaced", Queues(Line::LateSettled), "came too late"),
    ("queue::a_silent_consumer_is_replaced", Queues(Line::TokensRepeat), "no larger token"),
    ("queue::a_silent_consumer_is_replaced", Queues(Line::AtMostOnce), "too early"),
    ("queue::a_delivery_outlives_its_ttl", Queues(Line::RenewalsLie), "two consumers"),
    ("queue::a_stopped_consumers_ack_is_refused", Queues(Line::EndsLate), "an item is handed out"),
    ("queue::a_killed_consumer_is_replaced", Queues(Line::EndsLate), "handed out again"),
    ("queue::a_killed_consumer_is_replaced", PromisesMore, "handed out again"),
    ("queue::a_retry_holds_its_group_back", Queues(Line::RetriesAtOnce), "too early"),
    ("queue::a_retry_holds_its_group_back", Queues(Line::GroupsIgnored), "waits for a retry|too early"),
    ("queue::a_delay_holds_back", Queues(Line::DelaysIgnored), "too early"),
    ("queue::a_delay_holds_back", Queues(Line::Untold), "when it is due"),
    ("queue::a_delay_holds_back", Queues(Line::OneGroup), "an item is handed out"),
    ("queue::an_interval_is_never_undercut", Queues(Line::IntervalsIgnored), "too early"),
    ("queue::a_group_interval_is_never_undercut", Queues(Line::IntervalsIgnored), "too early"),
    ("queue::a_dedup_id_is_pushed_once", Queues(Line::DedupIgnored), "pushed twice"),
    ("queue::what_fails_is_a_dead_letter", Queues(Line::FailuresGone), "are listed"),
    ("queue::what_fails_is_a_dead_letter", Queues(Line::Untold), "replayed is handed out"),
    ("queue::the_last_attempt_is_buried", Queues(Line::AttemptsUnlimited), "second of two attempts"),
    ("queue::what_is_let_go_comes_again", Queues(Line::ReturnsCount), "uncounted"),
    ("queue::what_is_let_go_comes_again", Queues(Line::RetriesAtOnce), "too early"),
    ("queue::a_wait_dropped_at_any_moment_loses_nothing", Queues(Line::ReturnsCount), "nobody saw counts|an item is handed out|makes progress"),
    ("queue::a_wait_dropped_at_any_moment_loses_nothing", Queues(Line::AtMostOnce), "an item is handed out|makes progress"),
    ("queue::payloads_are_bytes", Queues(Line::PayloadsText), "not what was pushed"),
    ("queue::what_is_there_is_told", Queues(Line::Uncounted), "is counted"),
    ("queue::what_is_there_is_told", Queues(Line::GroupsIgnored), "standing"),
    ("queue::a_batch_is_answered_in_order", Queues(Line::BatchesReversed), "out of order|in its order"),
    ("queue::processes_share_a_queue_in_order", Queues(Line::GroupsIgnored), "at once|out of order"),
    ("queue::processes_share_a_queue_in_order", Queues(Line::AcksIgnored), "all is acknowledged"),
    ("queue::a_killed_client_loses_nothing", Queues(Line::AtMostOnce), "an item is lost"),
    ("queue_turns::those_who_are_gone_are_passed_over", Queues(Line::TurnsUntold), "those before are gone"),
    ("queue_turns::those_who_are_gone_are_passed_over", Queues(Line::IntervalsIgnored), "cut short"),
    ("queue::it_behaves_like_the_model", Queues(Line::DelaysIgnored), "left == right"),
    ("queue::it_behaves_like_the_model", Queues(Line::GroupsIgnored), "left == right"),
    ("queue_context::a_context_comes_with_each_delivery", Queues(Line::ContextsLost), "of a first delivery"),
    ("queue_context::a_context_comes_with_each_delivery", Queues(Line::ContextsOnce), "after a retry"),
    ("queue_context::a_context_is_that_of_its_item", Queues(Line::ContextsLost), "its own in a list"),
    ("queue_context::a_batch_keeps_contexts_apart", Queues(Line::ContextsMixed), "of a batch"),
    ("queue::it_behaves_like_the_model", Queues(Line::ContextsLost), "left == right"),
    ("death::a_killed_holder_is_replaced", Record(Rule::HoldsNeverEnd), "next in the queue"),
    ("death::a_killed_holder_is_replaced", PromisesMore, "next in the queue"),
    ("death::a_killed_waiter_is_skipped", Record(Rule::HoldsNeverEnd), "next waiter"),
    ("death::a_killed_waiter_is_skipped", PromisesMore, "next waiter"),
    ("death::a_client_killed_at_any_point_leaves_nothing", Record(Rule::HoldsNeverEnd), "survivor"),
    ("death::a_client_killed_at_any_point_leaves_nothing", Calls(Call::TokensFall), "larger"),
];

/// Makes the list of all checks, and what runs one of them by its name.
macro_rules! by_name {
    ([] $($module:ident { $($check:ident,)* })*) => {
        const CHECKS: &[&str] = &[$($(concat!(stringify!($module), "::", stringify!($check)),)*)*];

        fn run(check: &str, setup: &Broken) {
            match check {
                $($(concat!(stringify!($module), "::", stringify!($check)) => {
                    tenure_conformance::run(module_path!(), tenure_conformance::$module::$check(setup));
                })*)*
                unknown => unreachable!("{unknown} is on the list of breakages, but no check"),
            }
        }
    };
}

tenure_conformance::for_each_check! { (by_name) [] }

#[test]
fn every_check_has_a_breakage() {
    let broken: BTreeSet<&str> = BREAKAGES.iter().map(|(check, ..)| *check).collect();
    let checks: BTreeSet<&str> = CHECKS.iter().copied().collect();
    assert_eq!(checks.difference(&broken).collect::<Vec<_>>(), Vec::<&&str>::new(), "seen to fail by nobody");
    assert_eq!(broken.difference(&checks).collect::<Vec<_>>(), Vec::<&&str>::new(), "these are no checks");
}

/// Runs a check on a broken engine. Returns what is wrong with how it ended.
fn complaint(check: &'static str, breakage: Breakage, expected: &str) -> Option<String> {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let setup = Broken::new(breakage);
        done.send(catch_unwind(AssertUnwindSafe(|| run(check, &setup)))).ok();
    });
    let said = match ended.recv_timeout(CHECK_TIME_MAX) {
        Ok(Ok(())) => return Some(format!("{check} passes on {breakage:?}")),
        Ok(Err(panic)) => match panic.downcast::<String>() {
            Ok(said) => *said,
            Err(panic) => panic.downcast::<&str>().map_or("nothing".to_owned(), |said| (*said).to_owned()),
        },
        Err(_) => return Some(format!("{check} does not end on {breakage:?}")),
    };
    let is_expected = expected.split('|').any(|part| said.contains(part));
    (!is_expected).then(|| format!("{check} on {breakage:?} does not say {expected:?} but {said:?}"))
}

#[test]
fn every_check_fails_on_its_breakages() {
    let (queue, complaints) = (std::sync::Mutex::new(BREAKAGES.iter()), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no panic").next();
                    let Some(&(check, breakage, expected)) = next else { return };
                    // None: it has failed, as it should.
                    let tries = (0..TRIES).map(|_| complaint(check, breakage, expected));
                    let in_vain: Vec<String> = tries.map_while(|complaint| complaint).collect();
                    in_vain.iter().for_each(|complaint| println!("tried again: {complaint}"));
                    if in_vain.len() == TRIES {
                        complaints.lock().expect("no panic").extend(in_vain.last().cloned());
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().expect("no panic");
    assert!(complaints.is_empty(), "{} of {}:\n{}", complaints.len(), BREAKAGES.len(), complaints.join("\n"));
}
